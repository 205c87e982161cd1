"""`python -m lab`, which is what torchrun and accelerate launch."""

from lab.cli import main

main()
