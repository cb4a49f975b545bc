"""``python -m singleflight.cli`` is the command ``singleflight``."""

from singleflight.cli import main

main()
