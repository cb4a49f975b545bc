"""The table of exit codes: what setlock's users know holds here, side by side with Debian's setlock."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from singleflight.cli import main
from singleflight.cli.output import call_it
from singleflight.cli.run.signals import FORWARDED
from tests.support.servers import ValkeyServer
from tests.support.wrapper import PATIENCE, Program, as_shell, debians, gone, ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A running server."""
    with ValkeyServer() as running:
        yield running


@pytest.fixture(params=["singleflight", "setlock"])
def program(request: pytest.FixtureRequest, server: ValkeyServer, tmp_path: Path) -> Program:
    """Both programs, one after the other; each test has a lease of its own."""
    if request.param == "setlock":
        return debians(tmp_path)
    return ours(server.url, tmp_path, SINGLEFLIGHT_PREFIX=tmp_path.name)


@pytest.fixture(scope="module", params=["singleflight", "setlock"])
def taken(
    request: pytest.FixtureRequest, server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    """Both programs, with a lease that somebody else has until the end."""
    folder = tmp_path_factory.mktemp("taken")
    setlock = request.param == "setlock"
    program = debians(folder) if setlock else ours(server.url, folder, SINGLEFLIGHT_PREFIX=folder.name)
    with program.holding():
        yield program


@pytest.fixture(scope="module")
def own_taken(server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Ours alone, with a lease that somebody else has until the end."""
    folder = tmp_path_factory.mktemp("taken")
    program = ours(server.url, folder, SINGLEFLIGHT_PREFIX=folder.name)
    with program.holding():
        yield program


@pytest.fixture
def own(server: ValkeyServer, tmp_path: Path) -> Program:
    """Ours alone, for what setlock does not have."""
    return ours(server.url, tmp_path, SINGLEFLIGHT_PREFIX=tmp_path.name)


@pytest.fixture
def entered(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Return how to call the command line in this process, for calls that end before anything is started."""
    before = {number: signal.getsignal(number) for number in {*FORWARDED, signal.SIGCHLD}}
    monkeypatch.setenv("SINGLEFLIGHT_URL", server.url)

    def enter(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["setlock", *(word.replace("LEASE", "lk") for word in words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capfd.readouterr().err

    yield enter
    for number, handler in before.items():
        signal.signal(number, handler)
    call_it("singleflight")


FREE = [
    *((f"exit {code}", code) for code in (0, 1, 2, 7, 99, 100, 111, 112, 124, 125, 255)),
    *((f"kill -{name} $$", 128 + number) for name, number in (("KILL", 9), ("TERM", 15), ("SEGV", 11))),
    *((f"kill -{name} $$", 128 + number) for name, number in (("INT", 2), ("HUP", 1), ("USR1", 10))),
]


@pytest.mark.parametrize(("script", "code"), FREE)
def test_scenario_150_the_exit_code_is_the_commands(program: Program, script: str, code: int) -> None:
    """What the command ends with, code or signal, is what the caller's shell sees."""
    done = program.run("-n", "LEASE", "sh", "-c", f"ulimit -c 0; {script}")

    assert as_shell(done.returncode) == code
    assert done.stderr == ""


HELD = [
    (["-n"], 111),
    (["-nX"], 111),
    (["-Nn"], 111),
    (["-N", "-n"], 111),
    (["-nxX"], 111),
    (["-nx"], 0),
    (["-xn"], 0),
    (["-Xnx"], 0),
    (["-x", "-X", "-x", "-N", "-n"], 0),
]


@pytest.mark.parametrize(("letters", "code"), HELD)
def test_a_taken_lease_is_a_conflict(taken: Program, letters: list[str], code: int) -> None:
    """With -n a taken lease is 111 and a line on stderr, with -x 0 and silence; the last letter counts."""
    done = taken.run(*letters, "LEASE", "echo", "ran")

    assert (done.returncode, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == (1 if code else 0)


@pytest.mark.parametrize("letters", [[], ["-N"], ["-nN"], ["-nxN"]])
def test_without_n_the_command_waits_its_turn(program: Program, letters: list[str]) -> None:
    """-N, built in, waits for the holder, as long as it takes."""
    with program.holding() as holder:
        with program.started(*letters, "LEASE", "echo", "ran") as waiter:
            assert holder.stdin is not None
            holder.stdin.close()
            output, complaints = waiter.communicate(timeout=PATIENCE)
        assert holder.wait(PATIENCE) == 0

    assert (waiter.returncode, output, complaints) == (0, "ran\n", "")


@pytest.mark.parametrize("words", [["-q", "LEASE", "true"], ["LEASE"], [], ["-n"]])
def test_a_wrong_call_is_100(program: Program, words: list[str]) -> None:
    """An unknown letter, or a missing lease or command, is a usage error."""
    done = program.run(*words)

    assert done.returncode == 100
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_the_commands_own_words_are_left_alone(program: Program) -> None:
    """Nothing behind the lease is read as an option, or rewritten."""
    words = ["-abc", "--foo=bar", "-n", "-x", "--", "--help", "", "a b", "\udcff"]
    done = program.run("LEASE", "printf", "[%s]", *words, errors="surrogateescape")

    assert done.stdout == "".join(f"[{word}]" for word in words)


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "WINCH"])
def test_a_signal_reaches_the_command(program: Program, name: str) -> None:
    """A signal sent to the program arrives at the command, whose own answer is the exit code."""
    script = f"trap 'echo got; exit 3' {name}; echo ready; while :; do sleep 0.02; done"
    with program.started("LEASE", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[f"SIG{name}"])
        output, _ = process.communicate(timeout=PATIENCE)

    assert (process.returncode, output) == (3, "got\n")


def test_an_ignored_hangup_stays_ignored(program: Program) -> None:
    """Under nohup, neither program nor command end by HUP."""
    script = "trap 'exit 4' TERM; echo ready; while :; do sleep 0.02; done"
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *program.command("LEASE", "sh", "-c", script)]
    with Program((), program.lease, program.env).started(*words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)

    assert code == 4


@pytest.mark.parametrize(("letters", "code"), [([], 127), (["-x"], 127), (["-n"], 127)])
def test_a_missing_command_is_127(own: Program, letters: list[str], code: int) -> None:
    """As in a shell, also with -x; setlock says 111."""
    done = own.run(*letters, "LEASE", "/no/such/command")

    assert done.returncode == code
    assert done.stderr == "setlock: unable to run /no/such/command: No such file or directory\n"


@pytest.mark.parametrize("letters", [[], ["-x"]])
def test_a_file_that_cannot_be_executed_is_126(own: Program, letters: list[str], tmp_path: Path) -> None:
    """As in a shell, also with -x; setlock says 111."""
    plain = tmp_path / "plain"
    plain.write_text("no program")
    done = own.run(*letters, "LEASE", str(plain))

    assert done.returncode == 126


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--wait", "0"], 111),
        (["--wait", "100ms"], 111),
        (["-N", "--wait", "0.1s"], 111),
        (["-x", "--wait", "0.1"], 0),
        (["-n", "-E", "75"], 75),
        (["-E", "0", "--wait", "0.1"], 0),
    ],
)
def test_a_wait_that_is_over_is_a_conflict(own_taken: Program, options: list[str], code: int) -> None:
    """--wait bounds the waiting; -E chooses the code of a conflict."""
    done = own_taken.run(*options, "LEASE", "echo", "ran")

    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (["-n", "--wait", "5", "LEASE", "true"], "-n gives up at once and --wait does not"),
        (["-x", "-E", "5", "LEASE", "true"], "-x exits 0 and -E asks for another code"),
        (["-E", "256", "LEASE", "true"], "256 is not in the range"),
        (["--ttl", "soon", "LEASE", "true"], "'soon' is no duration"),
        (["--ttl", "0", "LEASE", "true"], "ttl=0.0 is not a possible duration"),
        (["--timeout", "0", "LEASE", "true"], "--timeout 0 leaves no time"),
        (["--kill-after", "11", "--ttl", "30", "LEASE", "true"], "at most 10; give a longer --ttl"),
        (["--occurrence", "noon", "LEASE", "true"], "'noon' is no time"),
        (["--occurrence", "2026-01-31T06:00", "LEASE", "true"], "says no time zone"),
        (["--url-file", "/no/such/file", "LEASE", "true"], "No such file"),
        (["redis://host/0", "true"], "append its name: redis://host/0/NAME"),
        (["redis://host/0/", "true"], "append its name: redis://host/0/NAME"),
        (["sqlite:///leases.db", "true"], "append its name: sqlite:///leases.db/NAME"),
        (["postgresql://host/database", "true"], "append its name: postgresql://host/database/NAME"),
        (
            ["nowhere://host/nightly", "true"],
            "no store for the scheme 'nowhere': write a URL such as redis://host:6379/0",
        ),
        (["redis://host/0/nightly", "--ttl", "5", "true"], "write the options of run before it"),
        (["LEASE", "--"], "nothing to run"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_write(
    entered: Callable[..., tuple[int, str]], words: list[str], phrase: str
) -> None:
    """No mistake costs more than one line to read."""
    code, complaint = entered(*words)

    assert code == 100
    assert phrase in complaint
    assert len(complaint.splitlines()) == 1


@pytest.mark.parametrize("options", [["-n"], ["-nx"], ["-x", "--wait", "1m"]])
def test_a_store_that_is_away_is_113(own: Program, options: list[str]) -> None:
    """An outage is no conflict: -x does not hide it, and nobody waits for a store that never answered."""
    done = own.run(*options, "redis://127.0.0.1:1/0/nightly", "echo", "ran")

    assert (done.returncode, done.stdout) == (113, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_run_that_takes_too_long_ends_with_124(own: Program) -> None:
    """--timeout ends the command and its children; one that ignores TERM is killed."""
    script = "trap '' TERM; sleep 60 & echo $!; wait; wait"
    done = own.run("--timeout", "300ms", "--kill-after", "200ms", "LEASE", "sh", "-c", script)

    assert done.returncode == 124
    assert gone(int(done.stdout))
    assert "was ended after 0.3 s" in done.stderr
