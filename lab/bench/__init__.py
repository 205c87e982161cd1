"""What lab bench measures on this machine: training steps, attention, and evaluation."""
