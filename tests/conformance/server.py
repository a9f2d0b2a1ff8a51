"""The server that the official suite drives: ``python server.py PORT``. The suite says what each thing answers.

Both eras are served on one endpoint, whose URL is printed; PORT 0 is any free port.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import trio

from trio_mcp import (
    CacheHints,
    CodedError,
    InputRequired,
    Limits,
    RequestContext,
    Server,
    Skills,
    ToolError,
    serve_http,
)
from trio_mcp.types import (
    AudioContent,
    CreateMessageParams,
    ElicitAnswer,
    ElicitFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequest,
    PromptMessage,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)

skills = Skills()
skills.add_files(
    "pdf-processing",
    {
        "SKILL.md": "---\nname: pdf-processing\ndescription: Fill and assemble PDF documents\nmetadata:\n"
        "  version: 2.1.0\n  reviewed: 2026-11-27\n---\n\nRead references/FORMS.md first.\n",
        "references/FORMS.md": "Forms have fields.\n",
        "templates/regional/invoice.md": "An invoice.\n",
        "logo.png": b"\x89PNG\r\n\x1a\n",
    },
)
skills.add_files("refunds", {"SKILL.md": "---\nname: refunds\ndescription: Refund\n---\n"}, prefix="acme/billing")

server = Server(
    "conformance",
    version="1.0.0",
    limits=Limits(progress_interval=0.01),
    cache=CacheHints(60_000),
    extensions=[skills],
)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
STEP = 0.05
"""Seconds between two messages of a tool."""

NAME_FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
COLOR_FORM = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
CONTEXT_FORM = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
CONFIRM_FORM = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
OK_FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def form(message: str, schema: dict[str, Any]) -> ElicitFormParams:
    return ElicitFormParams(message, schema)


def completion(prompt: str, max_tokens: int = 100) -> CreateMessageParams:
    return CreateMessageParams([SamplingMessage("user", TextContent(prompt))], max_tokens)


def field_of(ctx: RequestContext, key: str, field: str) -> str | None:
    """A field of the form that the client filled in, or nothing: answers are untrusted."""
    answer: Any = ctx.input_responses.get(key)
    content = answer.get("content") if isinstance(answer, dict) else None
    value = content.get(field) if isinstance(content, dict) else None
    return value if isinstance(value, str) else None


# Tools that answer


@server.tool
async def test_simple_text() -> str:
    """Answers with text."""
    return "This is a simple text response for testing."


@server.tool
async def test_image_content() -> ImageContent:
    """Answers with an image."""
    return ImageContent(PNG, "image/png")


@server.tool
async def test_audio_content() -> AudioContent:
    """Answers with sound."""
    return AudioContent(WAV, "audio/wav")


@server.tool
async def test_embedded_resource() -> EmbeddedResource:
    """Answers with a resource."""
    text = "This is an embedded resource content."
    return EmbeddedResource(TextResourceContents("test://embedded-resource", text, "text/plain"))


@server.tool
async def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Answers with text, an image and a resource."""
    data = json.dumps({"test": "data", "value": 123})
    return [
        TextContent("Multiple content types test:"),
        ImageContent(PNG, "image/png"),
        EmbeddedResource(TextResourceContents("test://mixed-content-resource", data, "application/json")),
    ]


@server.tool
async def test_error_handling() -> str:
    """Fails."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool
async def test_tool_with_logging(ctx: RequestContext) -> str:
    """Logs while it runs."""
    await ctx.log.info("Tool execution started")
    await trio.sleep(STEP)
    await ctx.log.info("Tool processing data")
    await trio.sleep(STEP)
    await ctx.log.info("Tool execution completed")
    return "Tool with logging executed successfully"


@server.tool
async def test_logging_tool(ctx: RequestContext) -> str:
    """Logs, which only those hear who asked for it."""
    await ctx.log.info("Diagnostic trace logging activated")
    return "Logging evaluated"


@server.tool
async def test_tool_with_progress(ctx: RequestContext) -> str:
    """Tells its progress."""
    for done in (0, 50, 100):
        ctx.progress(done, total=100, message=f"Completed step {done} of 100")
        await trio.sleep(STEP)
    return "Tool with progress executed successfully"


@server.tool
async def test_reconnection(ctx: RequestContext) -> str:
    """Lets its client come back for the result."""
    ctx.close_stream()
    await trio.sleep(2 * STEP)
    return "Reconnection test completed successfully"


JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@server.tool(input_schema=JSON_SCHEMA)
async def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Has a schema of many keywords."""
    return json.dumps(arguments)


@server.tool(
    input_schema={
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "query": {"type": "string"}},
        "required": ["region"],
    }
)
async def test_x_mcp_header(arguments: dict[str, Any]) -> str:
    """Has a parameter that travels in a header, too."""
    return f"region {arguments['region']}"


# Tools that ask where the answer is needed


@server.tool
async def test_sampling(prompt: str, ctx: RequestContext) -> str:
    """Asks the client's model."""
    return f"LLM response: {(await ctx.sample(prompt, max_tokens=100)).text}"


@server.tool
async def test_elicitation(message: str, ctx: RequestContext) -> str:
    """Asks the client's user."""
    schema = {
        "type": "object",
        "properties": {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        },
        "required": ["username", "email"],
    }
    return f"User response: {outcome(await ctx.elicit(message, schema))}"


@server.tool
async def test_elicitation_sep1034_defaults(ctx: RequestContext) -> str:
    """Asks the client's user with a form that has defaults."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        },
        "required": [],
    }
    return f"Elicitation completed: {outcome(await ctx.elicit('Please review the form', schema))}"


@server.tool
async def test_elicitation_sep1330_enums(ctx: RequestContext) -> str:
    """Asks the client's user with a form of all kinds of choices."""
    options = ["option1", "option2", "option3"]
    titled = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
    schema = {
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": options},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        },
        "required": [],
    }
    return f"Elicitation completed: {outcome(await ctx.elicit('Please choose', schema))}"


def outcome(answer: ElicitAnswer) -> str:
    return f"action={answer.action}, content={json.dumps(answer.content)}"


@server.tool(requires=["sampling"])
async def test_missing_capability() -> str:
    """Needs a client that samples."""
    return "The client samples"


@server.tool
async def test_streaming_elicitation(ctx: RequestContext) -> str:
    """Tells something first, so that its answer is a stream, and asks then."""
    ctx.progress(1)
    await ctx.elicit("What is your name?", NAME_FORM)
    return "Streaming complete"


# Tools that change what there is


@server.tool
async def test_trigger_tool_change() -> str:
    """Adds a tool and takes it away again."""

    @server.tool(name="test_passing_tool", description="Exists for a moment.")
    async def passing() -> str:
        return ""

    server.remove_tool("test_passing_tool")
    return "Mutation triggered"


@server.tool
async def test_trigger_prompt_change() -> str:
    """Adds a prompt and takes it away again."""

    @server.prompt(name="test_passing_prompt", description="Exists for a moment.")
    async def passing() -> str:
        return ""

    server.remove_prompt("test_passing_prompt")
    return "Mutation triggered"


# Tools that return their questions


@server.tool
async def test_input_required_result_elicitation(ctx: RequestContext) -> str | InputRequired:
    """Asks for a name."""
    if (name := field_of(ctx, "user_name", "name")) is None:
        return InputRequired({"user_name": form("What is your name?", NAME_FORM)})
    return f"Hello, {name}!"


@server.tool
async def test_input_required_result_sampling(ctx: RequestContext) -> str | InputRequired:
    """Asks the client's model for a capital."""
    if not ctx.has_input_response("capital_question"):
        return InputRequired({"capital_question": completion("What is the capital of France?")})
    return json.dumps(ctx.input_responses["capital_question"])


@server.tool
async def test_input_required_result_list_roots(ctx: RequestContext) -> str | InputRequired:
    """Asks for the client's roots."""
    if not ctx.has_input_response("client_roots"):
        return InputRequired({"client_roots": InputRequest("roots/list")})
    return json.dumps(ctx.input_responses["client_roots"])


@server.tool
async def test_input_required_result_request_state(ctx: RequestContext) -> str | InputRequired:
    """Asks, and expects its state back."""
    if ctx.request_state == "asked" and ctx.has_input_response("confirm"):
        return "state-ok"
    return InputRequired({"confirm": form("Please confirm", OK_FORM)}, "asked")


@server.tool
async def test_input_required_result_multiple_inputs(ctx: RequestContext) -> str | InputRequired:
    """Asks user, model and client at once."""
    questions = {
        "user_name": form("What is your name?", NAME_FORM),
        "greeting": completion("Generate a greeting", 50),
        "client_roots": InputRequest("roots/list"),
    }
    if ctx.request_state and questions.keys() <= ctx.input_responses.keys():
        return json.dumps(dict(ctx.input_responses))
    return InputRequired(questions, "asked")


@server.tool
async def test_input_required_result_multi_round(ctx: RequestContext) -> str | InputRequired:
    """Asks twice, the second time with what the first has told."""
    if ctx.request_state.startswith("named "):
        if color := field_of(ctx, "step2", "color"):
            return f"{ctx.request_state.removeprefix('named ')} likes {color}"
    elif name := field_of(ctx, "step1", "name"):
        return InputRequired({"step2": form("Step 2: What is your favorite color?", COLOR_FORM)}, f"named {name}")
    return InputRequired({"step1": form("Step 1: What is your name?", NAME_FORM)}, "begun")


@server.tool
async def test_input_required_result_tampered_state(ctx: RequestContext) -> str | InputRequired:
    """Asks with a state that nobody can change: the server seals it."""
    if ctx.request_state and ctx.has_input_response("confirm"):
        return "integrity-ok: state verified"
    return InputRequired({"confirm": form("Please confirm", OK_FORM)}, "sealed")


@server.tool
async def test_input_required_result_capabilities(ctx: RequestContext) -> str | InputRequired:
    """Asks what this client can be asked: the server leaves out the rest."""
    if ctx.is_resubmit:
        return f"capabilities-ok: {', '.join(ctx.input_responses)}"
    schema = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}
    return InputRequired({"elicit_input": form("Elicitation input", schema), "sample_input": completion("Sample", 50)})


# Tools whose calls may become tasks. What is asked before the task has started is a round of the call.


@server.tool
async def greet(name: str) -> str:
    """Greets at once."""
    return f"Hello, {name}!"


@server.tool(task="optional")
async def slow_compute(seconds: float, label: str, ctx: RequestContext) -> str:
    """Takes its time, as a task where it takes any."""
    if seconds and ctx.task is not None:
        await ctx.task.start()
    await trio.sleep(seconds)
    return f"{label}: computed for {seconds:g} s"


@server.tool(task="required")
async def failing_job(ctx: RequestContext) -> str:
    """Fails as tools do."""
    await ctx.task.start()
    raise ToolError("the job failed")


@server.tool(task="optional")
async def protocol_error_job(ctx: RequestContext) -> str:
    """Fails as requests do."""
    if ctx.task is not None:
        await ctx.task.start()
    raise CodedError(-32050, "the job broke off")


@server.tool(task="optional")
async def confirm_delete(filename: str, ctx: RequestContext) -> str:
    """Asks once, as a task."""
    if ctx.task is not None:
        await ctx.task.start()
    answer = await ctx.elicit(f"Delete {filename}?", CONFIRM_FORM)
    return f"{filename}: {outcome(answer)}"


@server.tool(task="optional")
async def multi_input(ctx: RequestContext) -> str:
    """Asks twice at once, as a task."""
    if ctx.task is not None:
        await ctx.task.start()
    answers: dict[str, str] = {}

    async def ask(what: str, schema: dict[str, Any]) -> None:
        answers[what] = outcome(await ctx.elicit(f"Your {what}?", schema))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "name", NAME_FORM)
        nursery.start_soon(ask, "decision", CONFIRM_FORM)
    return json.dumps(answers)


@server.tool(task="required")
async def test_tool_with_task(ctx: RequestContext) -> str:
    """Asks in a round of the call, and goes on as a task."""
    answer = await ctx.elicit("What is your name?", NAME_FORM)
    await ctx.task.start()
    return f"Hello, {outcome(answer)}!"


# Resources


@server.resource("test://static-text", description="Some text", mime_type="text/plain")
async def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary", description="An image", mime_type="image/png")
async def static_binary() -> bytes:
    return base64.b64decode(PNG)


@server.resource("test://template/{id}/data", description="Data with an id", mime_type="application/json")
async def template_data(id: str) -> dict[str, Any]:
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@server.resource("test://watched-resource", description="A resource to subscribe to", mime_type="text/plain")
async def watched_resource() -> str:
    return "Watched resource content"


# Prompts


@server.prompt
async def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.completion(prompt="test_prompt_with_arguments", argument="arg1")
async def arguments_beginning(value: str) -> list[str]:
    return [word for word in ("paris", "park", "party") if word.startswith(value)]


@server.prompt
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[PromptMessage]:
    """A prompt with a resource inside."""
    text = "Embedded resource content for testing."
    return [
        PromptMessage("user", EmbeddedResource(TextResourceContents(resourceUri, text, "text/plain"))),
        PromptMessage("user", TextContent("Please process the embedded resource above.")),
    ]


@server.prompt
async def test_prompt_with_image() -> list[PromptMessage]:
    """A prompt with an image."""
    return [
        PromptMessage("user", ImageContent(PNG, "image/png")),
        PromptMessage("user", TextContent("Please analyze the image above.")),
    ]


@server.prompt
async def test_input_required_result_prompt(ctx: RequestContext) -> str | InputRequired:
    """A prompt that asks its user."""
    if (context := field_of(ctx, "user_context", "context")) is None:
        return InputRequired({"user_context": form("What context should the prompt use?", CONTEXT_FORM)})
    return f"Use this context: {context}"


async def main(port: int) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(serve_http, server, "127.0.0.1", port)
        print(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp", flush=True)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
