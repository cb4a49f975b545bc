"""``python -m demo``, which `./dev demo` runs."""

from demo.command import demo

if __name__ == "__main__":
    demo(prog_name="demo")
