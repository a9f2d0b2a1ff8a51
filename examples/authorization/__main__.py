"""``python -m examples.authorization`` shows sign-in, step-up, refresh and revocation, in about ten seconds."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from examples.authorization.demo import tell_story_with_authorization
from trio_mcp.cli.commands.demo import run_demo


def main() -> int:
    """Run the demo, and return the exit status."""
    parser = ArgumentParser(prog="python -m examples.authorization", description=__doc__)
    parser.add_argument("--browser", action="store_true", help="sign in yourself, in your browser")
    in_browser: bool = parser.parse_args().browser
    return run_demo(lambda screen: tell_story_with_authorization(screen, in_browser=in_browser))


if __name__ == "__main__":
    sys.exit(main())
