"""thin"""

import sys


class View:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def update(self, p):
        n = (p.stage, len(p.facts.sent), len(p.facts.bodies))
        if n != getattr(self, "last", None):
            print(round(p.elapsed, 1), n, file=sys.stderr)
        self.last = n


def show_verdict(v, p, to_stderr):
    print(v, file=sys.stderr)
