"""A repository by the git command: after the git server of the reference collection.

    trio-mcp run examples/ported/git_server.py -- PATH_OF_THE_REPOSITORY

Each call runs git in a tree of processes that ends with the call: a cancelled `git_log` of a huge repository is gone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from trio_mcp import Server, ToolError, run_process_tree
from trio_mcp.types import ToolAnnotations

server = Server("git", "1.0")
repository = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()

# Nothing that begins with a dash is a name of git's: it would be an option.
NAME = r"^[^-\x00-\x1f][^\x00-\x1f]*$"
Ref = Annotated[str, Meta(pattern=NAME, max_length=500, description="A branch, tag or commit.")]
Message = Annotated[str, Meta(min_length=1, max_length=10_000, description="What the commit does.")]
File = Annotated[str, Meta(pattern=r"^[^\x00]+$", max_length=4_000)]
Lines = Annotated[int, Meta(ge=0, le=1_000, description="Lines of context around each change.")]
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(destructive_hint=False, open_world_hint=False)


async def git(*words: str) -> str:
    """Run git in the repository, and return what it prints."""
    command = ["git", "--no-pager", "-c", "core.quotePath=false", *words]
    ended = await run_process_tree(command, cwd=repository, capture_stdout=True, capture_stderr=True, check=False)
    if ended.returncode:
        raise ToolError(ended.stderr.decode("utf-8", "replace").strip() or f"git ended with status {ended.returncode}")
    return ended.stdout.decode("utf-8", "replace")


@server.tool(annotations=READS)
async def git_status() -> str:
    """Show what is changed, staged and unknown."""
    return await git("status")


@server.tool(annotations=READS)
async def git_diff_unstaged(context_lines: Lines = 3) -> str:
    """Show the changes that are not staged."""
    return await git("diff", f"--unified={context_lines}")


@server.tool(annotations=READS)
async def git_diff_staged(context_lines: Lines = 3) -> str:
    """Show the changes that are staged."""
    return await git("diff", f"--unified={context_lines}", "--cached")


@server.tool(annotations=READS)
async def git_diff(target: Ref, context_lines: Lines = 3) -> str:
    """Show the differences to a branch or commit."""
    return await git("diff", f"--unified={context_lines}", target, "--")


@server.tool(annotations=WRITES)
async def git_commit(message: Message) -> str:
    """Commit what is staged."""
    return await git("commit", "--message", message)


@server.tool(annotations=WRITES)
async def git_add(files: list[File]) -> str:
    """Stage files."""
    await git("add", "--", *files)
    return "staged"


@server.tool(annotations=WRITES)
async def git_reset() -> str:
    """Take all back that is staged; the files stay as they are."""
    return await git("reset") or "nothing is staged"


@server.tool(annotations=READS)
async def git_log(max_count: Annotated[int, Meta(ge=1, le=1_000)] = 10) -> str:
    """Show the latest commits."""
    return await git("log", f"--max-count={max_count}")


@server.tool(annotations=READS)
async def git_show(revision: Ref) -> str:
    """Show a commit."""
    return await git("show", revision, "--")


@server.tool(annotations=WRITES)
async def git_create_branch(branch_name: Ref, base_branch: Ref = "HEAD") -> str:
    """Create a branch."""
    await git("branch", branch_name, base_branch)
    return f"created {branch_name}"


@server.tool(annotations=WRITES)
async def git_checkout(branch_name: Ref) -> str:
    """Switch to a branch."""
    await git("switch", branch_name)
    return f"switched to {branch_name}"


@server.tool(annotations=READS)
async def git_branch(branch_type: Literal["local", "remote", "all"] = "local") -> str:
    """List branches."""
    return await git("branch", *{"local": [], "remote": ["--remotes"], "all": ["--all"]}[branch_type])
