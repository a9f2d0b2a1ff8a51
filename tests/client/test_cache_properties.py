"""A cache under every order of fetches, changes, errors, time and eviction: it never shows what it must not."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.examples import examples

from trio_mcp.client.cache import CachePartition, Change, PendingAnswer, RequestKey, ResponseCache

MAX_TTL = 3
QUESTIONS = (
    RequestKey("tools/list", b"{}"),
    RequestKey("tools/list", b'{"cursor":"2"}', cursor="2"),
    RequestKey("resources/templates/list", b"{}"),
    RequestKey("resources/read", b'{"uri":"x://a"}', uri="x://a"),
    RequestKey("resources/read", b'{"uri":"x://a/b"}', uri="x://a/b"),
)
CHANGES = (
    Change("tools"),
    Change("resources"),
    Change("resource", "x://a/b"),
    Change("resource", "x://c"),
)
WHO = (("one", "ann"), ("one", "ann"), ("one", "bob"), ("one", None), ("two", "ann"))
"""Server and principal of each client. `None` is nobody else's."""


@attrs.frozen
class Asked:
    fetch: PendingAnswer
    context: Any
    client: int
    began: int


@attrs.frozen
class Answer:
    client: int
    question: RequestKey
    began: int
    came: int
    received: float
    ttl: float
    public: bool


@attrs.frozen
class Outdated:
    server: Any
    question: RequestKey
    at: int


def server_of(client: int) -> Any:
    return WHO[client][0]


def owner_of(client: int) -> Any:
    return WHO[client][1] or client


def outdates(change: Change, question: RequestKey) -> bool:
    """Written down once more, by the words of the specification."""
    match change.kind:
        case "resource":  # the resource itself, or one that it is a part of
            return question.uri is not None and (change.uri or "").startswith(question.uri)
        case kind:
            return question.method.startswith(f"{kind}/") and question.uri is None


class CacheMachine(RuleBasedStateMachine):
    """A cache and a log of all that happened, in which what it shows must be found."""

    @initialize(max_entries=st.sampled_from([100, 2]), max_bytes=st.sampled_from([100_000, 150]))
    def start(self, max_entries: int, max_bytes: int) -> None:
        self.bounds = max_entries, max_bytes
        self.is_roomy = max_entries == 100 and max_bytes == 100_000
        self.cache = ResponseCache(max_entries=max_entries, max_bytes=max_bytes, max_ttl=MAX_TTL)
        self.partitions: list[CachePartition] = [self.cache.partition(*who) for who in WHO]
        self.now = 1000.0
        self.clock = 0
        self.asked: list[Asked] = []
        self.answers: dict[int, Answer] = {}
        self.latest: dict[Any, Answer | None] = {}
        self.outdated: list[Outdated] = []
        self.refused: list[tuple[int, RequestKey, int]] = []

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    clients = st.integers(0, len(WHO) - 1)
    questions = st.sampled_from(QUESTIONS)

    @rule(client=clients, question=questions)
    def ask(self, client: int, question: RequestKey) -> None:
        context = self.cache._fetching(self.partitions[client], question)
        self.asked.append(Asked(context.__enter__(), context, client, self.tick()))

    def end(self, which: int) -> Asked | None:
        if not self.asked:
            return None
        return self.asked.pop(which % len(self.asked))

    @rule(which=st.integers(0, 2), ttl_ms=st.sampled_from([2000, 10**12, 500, 0]), public=st.booleans())
    def answer(self, which: int, ttl_ms: int, public: bool) -> None:
        asked = self.end(which)
        if asked is None:
            return
        number = self.tick()
        question = asked.fetch.request
        answer = Answer(
            asked.client,
            question,
            asked.began,
            number,
            self.now,
            min(ttl_ms, MAX_TTL * 1000) / 1000,
            public,
        )
        self.answers[number] = answer
        later = any(
            each.began > asked.began and each.question == question and self.same_server(each.client, asked.client)
            for each in self.answers.values()
        )
        if not later and not self.is_outdated(answer):
            self.latest[server_of(asked.client), question] = answer
        said = {"number": number, "ttlMs": ttl_ms, "cacheScope": "public" if public else "private"}
        asked.fetch.store(said, self.now)
        asked.context.__exit__(None, None, None)

    @rule(which=st.integers(0, 2), code=st.sampled_from([-32602, -32603]))
    def fail(self, which: int, code: int) -> None:
        asked = self.end(which)
        if asked is None:
            return
        question = asked.fetch.request
        if question.cursor is not None and code == -32602:
            pages = [each for each in QUESTIONS if each.method == question.method]
            self.outdated += [Outdated(server_of(asked.client), page, self.tick()) for page in pages]
        else:
            self.refused.append((asked.client, question, self.tick()))
            self.latest[server_of(asked.client), question] = None
        asked.fetch.record_error(code)
        asked.context.__exit__(None, None, None)

    @rule(which=st.integers(0, 2))
    def give_up(self, which: int) -> None:
        asked = self.end(which)
        if asked is not None:
            asked.context.__exit__(None, None, None)

    @rule(client=clients, change=st.sampled_from(CHANGES))
    def change(self, client: int, change: Change) -> None:
        at = self.tick()
        touched = [question for question in QUESTIONS if outdates(change, question)]
        self.outdated += [Outdated(server_of(client), question, at) for question in touched]
        self.partitions[client]._changed(change)

    @rule(seconds=st.sampled_from([0.5, 1.5]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def same_server(self, one: int, other: int) -> bool:
        return server_of(one) == server_of(other)

    def is_outdated(self, answer: Answer) -> bool:
        return any(
            each.server == server_of(answer.client) and each.question == answer.question and each.at > answer.began
            for each in self.outdated
        )

    @invariant()
    def what_anybody_is_shown_is_right(self) -> None:
        for client in range(len(WHO)):
            for question in QUESTIONS:
                self.look(client, question)

    def look(self, client: int, question: RequestKey) -> None:
        shown = self.cache._find(self.partitions[client], question, self.now)
        if shown is None:
            self.check_that_nothing_good_is_hidden(client, question)
            return
        answer = self.answers[shown["number"]]
        shown["number"] = "poison"
        assert self.same_server(answer.client, client)
        assert answer.question == question
        assert answer.public or owner_of(answer.client) == owner_of(client), "a private answer of somebody else"
        assert self.now < answer.received + answer.ttl, "stale"
        assert not self.is_outdated(answer), "a change was seen since it was asked for"
        for each in self.answers.values():
            if each.question == question and self.same_server(each.client, client) and each.began > answer.began:
                theirs = owner_of(each.client) != owner_of(client) and not (each.public and answer.public)
                assert theirs, "there was an answer to a later request"
        for who, what, at in self.refused:
            assert (who, what) != (client, question) or at < answer.came, "it was refused since"

    def check_that_nothing_good_is_hidden(self, client: int, question: RequestKey) -> None:
        answer = self.latest.get((server_of(client), question))
        if self.is_roomy and answer is not None:
            visible = answer.public or owner_of(answer.client) == owner_of(client)
            assert not visible or self.now >= answer.received + answer.ttl or self.is_outdated(answer)

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.cache) <= self.bounds[0]
        assert self.cache.size <= self.bounds[1]
        assert (self.cache.size == 0) == (len(self.cache) == 0)


CacheMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=30)
TestCache = CacheMachine.TestCase
