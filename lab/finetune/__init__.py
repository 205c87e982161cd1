"""A pretrained model trained further, by the loop of lab train."""
