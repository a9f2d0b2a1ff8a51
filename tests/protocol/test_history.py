"""Members added and removed by each revision, compared with lists written by hand."""

from __future__ import annotations

import pytest
from tests.protocol.examples import full, sayable_classes

from trio_mcp.protocol.converters import unstructure
from trio_mcp.protocol.revisions import REVISIONS, Revision

CAME = {
    "2025-03-26": """
        ProgressParams.message
        ServerCapabilities.completions
        Tool.annotations
    """,
    "2025-06-18": """
        Annotations.lastModified
        AudioContent._meta BlobResourceContents._meta EmbeddedResource._meta ImageContent._meta Prompt._meta
        Resource._meta ResourceTemplate._meta Root._meta TextContent._meta TextResourceContents._meta
        Tool._meta
        CallToolResult.structuredContent Tool.outputSchema
        ClientCapabilities.elicitation
        CompleteParams.context
        Implementation.title Prompt.title PromptArgument.title PromptReference.title Resource.title
        ResourceTemplate.title Tool.title
    """,
    "2025-11-25": """
        CallToolParams.task CreateMessageParams.task ElicitFormParams.task
        ClientCapabilities.tasks ServerCapabilities.tasks
        CreateMessageParams.toolChoice CreateMessageParams.tools Sampling.context Sampling.tools
        Elicitation.form Elicitation.url
        Implementation.description Implementation.icons Implementation.websiteUrl
        Prompt.icons Resource.icons ResourceLink.icons ResourceTemplate.icons Tool.icons
        SamplingMessage._meta
        Tool.execution
    """,
    "2026-07-28": """
        CallToolParams.inputResponses CallToolParams.requestState
        GetPromptParams.inputResponses GetPromptParams.requestState
        ReadResourceParams.inputResponses ReadResourceParams.requestState
        ListPromptsResult.cacheScope ListPromptsResult.ttlMs
        ListResourceTemplatesResult.cacheScope ListResourceTemplatesResult.ttlMs
        ListResourcesResult.cacheScope ListResourcesResult.ttlMs
        ListToolsResult.cacheScope ListToolsResult.ttlMs
        ReadResourceResult.cacheScope ReadResourceResult.ttlMs
    """,
}
GONE = {
    "2026-07-28": """
        CallToolParams.task CreateMessageParams.task ElicitFormParams.task ElicitURLParams.task
        ClientCapabilities.tasks ServerCapabilities.tasks
        ElicitResult._meta ListRootsResult._meta
        CreateMessageParams._meta ElicitFormParams._meta ElicitURLParams._meta
        ElicitURLParams.elicitationId
        Roots.listChanged
        Tool.execution
    """,
}
STEPS = list(zip(list(REVISIONS.values()), list(REVISIONS.values())[1:], strict=False))


def said(revision: Revision, other: Revision) -> set[str]:
    """Every member that ``revision`` says, of the classes that both revisions have words for."""
    both = [kind for kind in sayable_classes(revision) if kind in sayable_classes(other)]
    return {f"{kind.__name__}.{name}" for kind in both for name in unstructure(full(kind, revision), revision)}


@pytest.mark.parametrize(("before", "after"), STEPS, ids=str)
def test_fields_of_each_message_class_are_added_in_the_revision_that_the_changelog_names(
    before: Revision, after: Revision
) -> None:
    assert said(after, before) - said(before, after) == set(CAME.get(after.name, "").split())


@pytest.mark.parametrize(("before", "after"), STEPS, ids=str)
def test_fields_of_each_message_class_are_removed_in_the_revision_that_the_changelog_names(
    before: Revision, after: Revision
) -> None:
    assert said(before, after) - said(after, before) == set(GONE.get(after.name, "").split())
