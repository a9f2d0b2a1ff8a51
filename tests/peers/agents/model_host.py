"""A recipe of `docs/clients/agent-frameworks.md` answers a server that samples: python model_host.py FOLDER MODULE

The provider is a server of HTTP in this process, which answers as the provider's interface does. The client of the
provider is the real one.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

import trio
from steps import LIMIT, tell

from trio_mcp import RequestContext, Server, open_memory

CLAUDE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "told",
    "content": [{"type": "text", "text": "Blue."}],
    "stop_reason": "max_tokens",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Blue."}, "finish_reason": "length", "logprobs": None}
GPT = {"id": "1", "object": "chat.completion", "created": 1, "model": "told", "choices": [CHOICE]}
ANSWERS = {"/v1/messages": CLAUDE, "/v1/chat/completions": GPT}

asked, closed = threading.Event(), threading.Event()


class Provider(BaseHTTPRequestHandler):
    """Answers "Which?", refuses "Refuse!", and keeps "Wait!" waiting until the client has left."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        question = body["messages"][-1]["content"]
        if question == "Wait!":
            asked.set()
            if not self.rfile.read(1):
                closed.set()
            return
        if question == "Refuse!":
            self.answer(401, {"error": {"type": "authentication_error", "message": "bad key", "code": "1"}})
            return
        tell("request", body)
        self.answer(200, ANSWERS[self.path])

    def answer(self, status: int, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Standard error is for failures."""


server = Server("curious")


@server.tool
async def ask(question: str, ctx: RequestContext) -> str:
    """Ask the host's model."""
    got = await ctx.sample(question, max_tokens=10, system_prompt="Be short.")
    return f"{got.text} {got.model} {got.stop_reason}"


async def main(recipe: Any) -> None:
    with trio.fail_after(LIMIT):
        async with open_memory(server, sampling=recipe.answer) as client:
            tell("answer", (await client.call_tool("ask", {"question": "Which?"})).text)
            try:
                await client.call_tool("ask", {"question": "Refuse!"})
            except Exception as error:
                tell("refused", type(error).__name__)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "ask", {"question": "Wait!"})
                await trio.to_thread.run_sync(asked.wait, LIMIT)
                nursery.cancel_scope.cancel()
            await trio.to_thread.run_sync(closed.wait, LIMIT)
            tell("closed", closed.is_set())


provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
threading.Thread(target=provider.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{provider.server_port}"
os.environ |= {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1"}
os.environ |= {"ANTHROPIC_API_KEY": "none", "OPENAI_API_KEY": "none"}
sys.path.insert(0, sys.argv[1])
trio.run(main, import_module(sys.argv[2]))
