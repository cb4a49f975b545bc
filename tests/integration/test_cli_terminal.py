"""`singleflight run` at a terminal: Ctrl-C, Ctrl-Z, fg and pagers work as if it were not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from singleflight import Lease, try_lease
from singleflight.keys import lease_key
from singleflight.stores import open_store
from tests.support.servers import ValkeyServer
from tests.support.shell import CTRL_C, CTRL_Z, PROMPT, Shell
from tests.support.waiting import until
from tests.support.wrapper import Program, debians, ours

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOP = "while :; do sleep 0.02; done"


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A running server."""
    with ValkeyServer() as running:
        yield running


@pytest.fixture(params=["singleflight", "setlock"])
def program(request: pytest.FixtureRequest, server: ValkeyServer, tmp_path: Path) -> Program:
    """Both programs, one after the other: at a terminal, too, they must not differ."""
    if request.param == "setlock":
        return debians(tmp_path)
    return ours(server.url, tmp_path, SINGLEFLIGHT_PREFIX=tmp_path.name)


@pytest.fixture
def shell(program: Program) -> Iterator[Shell]:
    """A shell in which ``$RUN`` is the program and its lease."""
    with Shell({**program.env, "RUN": " ".join([*program.argv, program.lease])}) as opened:
        yield opened


def test_ctrl_c_reaches_the_command_once(shell: Shell) -> None:
    """The command's own handler answers, and its exit code comes back."""
    shell.type(f"""$RUN sh -c 'trap "echo caught; exit 9" INT; echo ready; {LOOP}'; echo "code $?"\n""")
    shell.read_until("ready")
    shell.type(CTRL_C)
    shown = shell.read_until("code 9")

    assert shown.count("caught") == 1


def test_ctrl_c_ends_the_shells_loop_too(shell: Shell) -> None:
    """A loop in the shell does not go on with the next round."""
    shell.type(f"for i in 1 2 3; do $RUN sh -c 'echo round '$i'; {LOOP}'; done; echo after\n")
    shell.read_until("round 1")
    shell.type(CTRL_C)
    shown = shell.read_until(PROMPT)

    assert "round 2" not in shown


def test_ctrl_z_stops_and_fg_goes_on(shell: Shell) -> None:
    """The job is stopped as a whole, and continues in the foreground, with the terminal."""
    shell.type("""$RUN sh -c 'echo ready; read line; echo "got $line"'; echo "code $?"\n""")
    shell.read_until("ready")
    shell.type(CTRL_Z)
    shell.read_until("Stopped")
    shell.type("fg\n")
    shell.read_until("read line")  # the shell repeats the job's words
    shell.type("hello\n")
    shell.read_until("got hello")
    shell.type('echo "ended $?"\n')

    assert shell.read_until("ended 0")


def test_the_command_may_read_the_terminal(shell: Shell) -> None:
    """The command is in the foreground: it reads what is typed, and knows where it is."""
    script = "import os; print(os.tcgetpgrp(0) == os.getpgrp(), input())"
    shell.type(f"$RUN python3 -c '{script}'\nhello\n")

    assert "True hello" in shell.read_until("hello")


def test_a_pager_at_the_end_of_a_pipe_may_read_the_terminal(shell: Shell) -> None:
    """Another program of the same pipe keeps the keyboard."""
    shell.type("$RUN echo text | sh -c 'cat; echo ready; read line </dev/tty; echo \"pager got $line\"'\n")
    shell.read_until("ready")
    shell.type("q\n")

    assert shell.read_until("pager got q")


def test_a_command_in_a_pipe_gets_the_terminal_when_it_asks(shell: Shell) -> None:
    """A command whose output goes to a pipe can still ask for a password."""
    shell.type("$RUN sh -c 'read line </dev/tty; echo \"got $line\"' | cat\nsecret\n")

    assert shell.read_until("got secret")


def test_a_background_job_can_be_fetched(shell: Shell) -> None:
    """A job that was started in the background stops when it reads, and `fg` gives it the keyboard."""
    shell.type("$RUN sh -c 'echo ready; read line; echo \"got $line\"' &\n")
    shell.read_until("ready")
    shell.type("wait %1; jobs; echo en''d\n")
    shell.read_until("end")
    shell.type("fg\n")
    shell.read_until("read line")
    shell.type("hello\n")

    assert shell.read_until("got hello")


def test_a_job_stopped_for_too_long_does_not_go_on(server: ValkeyServer, tmp_path: Path) -> None:
    """When another run took the lease of a stopped job, `fg` ends the command instead: 112."""
    program = ours(server.url, tmp_path, SINGLEFLIGHT_PREFIX=tmp_path.name)
    run = " ".join([*program.argv, "--ttl 1", program.lease])
    with Shell({**program.env, "RUN": run}) as shell:
        shell.type("""$RUN sh -c 'echo ready; read line; echo "went on"'\n""")
        shell.read_until("ready")
        shell.type(CTRL_Z)
        shell.read_until("Stopped")
        taken = until(
            lambda: isinstance(one := try_lease(server.url, "lk", prefix=tmp_path.name), Lease) and one
        )
        shell.read_until(PROMPT)
        shell.type("fg\n")
        shown = shell.read_until(PROMPT)
        shell.type('echo "code $?"\n')
        code = shell.read_until("\n")
    taken.release()

    assert "went on" not in shown.replace('echo "went on"', "")
    assert "could not be trusted" in shown
    assert code.strip() == "code 112"


def test_ctrl_c_ends_the_waiting(server: ValkeyServer, tmp_path: Path) -> None:
    """While it waits for the lease, Ctrl-C ends it at once and Ctrl-Z stops it."""
    program = ours(server.url, tmp_path, SINGLEFLIGHT_PREFIX=tmp_path.name)
    store, key = open_store(server.url), lease_key(tmp_path.name, "lk")

    def waits_until() -> int:
        look = store.peek(key)
        return look.record.slot_expires_ms if look is not None else 0

    with program.holding(), Shell({**program.env, "RUN": " ".join([*program.argv, "lk"])}) as shell:
        shell.type("$RUN echo ran\n")
        until(waits_until)
        shell.type(CTRL_Z)
        shell.read_until("Stopped")
        shell.read_until(PROMPT)
        before = waits_until()
        shell.type("fg\n")
        until(lambda: waits_until() > before)
        shell.read_until("echo ran")
        shell.type(CTRL_C)
        shown = shell.read_until(PROMPT)
        left = waits_until()
    store.close()

    assert "ran" not in shown
    assert left == 0
