"""`nox` tests the environment on a server that is there for the whole session."""

from __future__ import annotations

import nox

nox.options.sessions = ["tests"]


@nox.session
def tests(session: nox.Session) -> None:
    """Start a server with two workers, run the tests against it, stop it."""
    session.install("-e", ".[test]")
    session.run(
        "trio-envserve", "run-with", "spelling_env:Spelling", "--workers", "2",
        "--", "python", "-m", "pytest", *session.posargs,
    )  # fmt: skip


@nox.session
def alone(session: nox.Session) -> None:
    """The same without run-with: the plugin starts the server."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)
