"""Rows stay readable in later versions, and encrypted ones only with the right secret."""

from __future__ import annotations

import subprocess
import sys

import attrs
import msgspec
import pytest
from tests.patience import PATIENCE

from trio_mcp.stores.record_codec import RecordCodec, StoredRecord
from trio_mcp.stores.task_store import Outcome, TaskPhase, TaskRecord, UnreadableRecord

SECRET, OTHER = bytes(range(32)), bytes(range(32, 64))

WHOLE = TaskRecord(
    id="task",
    scope="ann",
    method="tools/call",
    name="report",
    params=b'{"name":"report"}',
    revision="2025-11-25",
    capabilities=b"{}",
    on_restart="again",
    is_external=False,
    created_at=1,
    position=10,
    updated_at=2,
    expires_at=3,
    kept_until=4,
    poll_ms=5,
    phase=TaskPhase.ENDED,
    message="done",
    questions={"a": b"1"},
    answers={"b": b"2"},
    outcome=Outcome(b"{}", is_error=False, tells_failure=True),
    checkpoint=b"[]",
    cancel_reason="why",
    attempt=6,
    holder="me",
    epoch=7,
    leased_until=8,
    version=9,
    mark=b"mark",
)

FIRST_VERSION = StoredRecord(
    id=b"task",
    scope=b"ann",
    name="7265706f7274",
    place=10,
    kept_until=4,
    is_open=False,
    holder="me",
    leased_until=8,
    epoch=7,
    version=9,
    mark=b"mark",
    form=b"\x01",
    body=bytes.fromhex(
        "dc0015a3616e6eaa746f6f6c732f63616c6ca67265706f7274c4117b226e616d65223a227265706f7274227daa323032352d"
        "31312d3235c4027b7da5616761696ec20102030405a5656e646564a4646f6e6581a161c4013181a162c4013283a869735f65"
        "72726f72c2a46a736f6ec4027b7dad74656c6c735f6661696c757265c3c4025b5da377687906"
    ),
)
"""As the first version has written it, to the byte."""

SEALED = attrs.evolve(
    FIRST_VERSION,
    scope=bytes.fromhex("2d5fc8ccc5e4c00f37ace0b964d6c5a2135cad175fc0bfde83536342c05e9c9c"),
    name="7c0a5f71bf800110b767f45a12842aae5f82b2396ad0dd3a112d8bf26bf9e4e0",
    form=bytes.fromhex("01e531c3617f5ee92e"),
    body=bytes.fromhex(
        "9feaa8832e7e029c18bec246823ac23f14a61602fe2e7a4a0d649e4f2c50dff0dbd774a8de69fb1c89b10d2cca9acd60430c"
        "b2f73eec6c16ec3d0483078cf1c6c210085e5e5b84ee67eaead0dfff3a46840cf326e0ac702b62e3e55deef4ae8e955a2a93"
        "764e2543ac550fc5b65d7fed55f4a73a3c5ea823394e84f9ba2c67bfbc0bcfe38c56779baaed5bdf76fa222c3826c48b8e15"
        "5c3c2359628d73cc3bd07958b54cc87e"
    ),
)
"""As the first version has sealed it."""


def test_task_record_codec_reads_a_row_of_its_first_format_version():
    assert RecordCodec().decode(FIRST_VERSION) == WHOLE


NEW_FIELDS = bytes.fromhex("80c0")
"""What came later than the first version: fields at the end, without a value. The number of fields has grown by two."""


def test_task_record_codec_writes_the_first_format_version_plus_new_fields():
    """Where this fails, a new version is due, and the rows of this one stay readable."""
    row = RecordCodec().encode(WHOLE)
    assert row.body[2] == FIRST_VERSION.body[2] + 2
    assert row.body[3:] == FIRST_VERSION.body[3:] + NEW_FIELDS
    assert attrs.evolve(row, body=FIRST_VERSION.body) == FIRST_VERSION


def test_task_record_keeps_the_order_of_its_input_requests_after_encoding_and_decoding():
    record = attrs.evolve(WHOLE, asked={"b": (), "a": ("b",)}, continuation=b'[{},"state"]')
    kept = RecordCodec().decode(RecordCodec().encode(record))
    assert kept == record
    assert list(kept.asked) == ["b", "a"]


def test_task_record_codec_reads_an_encrypted_row_of_its_first_format_version():
    codec = RecordCodec([OTHER, SECRET])
    assert codec.decode(SEALED) == WHOLE
    assert SEALED.form in codec.forms
    assert SEALED.scope in codec.scope_keys("ann")
    assert SEALED.name in codec.name_keys("report")


@pytest.mark.parametrize("secrets", [(), (SECRET,), (SECRET, OTHER)], ids=["plain", "sealed", "two secrets"])
def test_task_record_is_equal_after_encoding_and_decoding(secrets: tuple[bytes, ...]):
    codec = RecordCodec(secrets)
    assert codec.decode(codec.encode(WHOLE)) == WHOLE


def test_task_record_without_a_lease_holder_is_encoded_with_an_expired_lease():
    record = attrs.evolve(WHOLE, holder=None)
    assert RecordCodec().encode(record).leased_until == 0


def test_encoded_task_record_is_open_only_in_the_phases_working_and_input_required():
    def is_open(**changes: object) -> bool:
        return RecordCodec().encode(attrs.evolve(WHOLE, **changes)).is_open

    assert {phase: is_open(phase=phase) for phase in TaskPhase} == {
        TaskPhase.WORKING: True,
        TaskPhase.INPUT_REQUIRED: True,
        TaskPhase.ENDED: False,
        TaskPhase.CANCELLED: False,
    }
    assert not is_open(phase=TaskPhase.WORKING, is_external=True)


def test_row_of_an_encrypted_task_record_contains_neither_caller_nor_content_in_plain_text():
    row = RecordCodec([SECRET]).encode(attrs.evolve(WHOLE, scope="a rare name"))
    shown = repr(attrs.asdict(row)).encode()
    for secret in (b"a rare name", WHOLE.name.encode(), WHOLE.params, b"done", b"why"):
        assert secret not in row.body
        assert secret not in shown


def test_task_record_codec_encrypts_with_the_first_secret_and_decrypts_with_every_secret():
    before, after = RecordCodec([OTHER]), RecordCodec([SECRET, OTHER])
    assert after.decode(before.encode(WHOLE)) == WHOLE
    assert before.encode(WHOLE).scope in after.scope_keys("ann")
    assert after.encode(WHOLE).form == RecordCodec([SECRET]).encode(WHOLE).form
    with pytest.raises(UnreadableRecord, match="none of the secrets"):
        before.decode(after.encode(WHOLE))


def test_task_record_codec_without_secrets_refuses_an_encrypted_row():
    with pytest.raises(UnreadableRecord, match="needs its secret"):
        RecordCodec().decode(RecordCodec([SECRET]).encode(WHOLE))


def test_task_record_codec_with_secrets_refuses_an_unencrypted_row():
    with pytest.raises(UnreadableRecord, match="is not encrypted"):
        RecordCodec([SECRET]).decode(RecordCodec().encode(WHOLE))


def test_task_record_codec_refuses_a_row_of_a_later_version_and_names_the_version():
    with pytest.raises(UnreadableRecord, match="version 02"):
        RecordCodec().decode(attrs.evolve(FIRST_VERSION, form=b"\x02"))


def test_task_record_codec_lists_one_readable_row_form_for_each_of_its_secrets():
    assert RecordCodec().forms == [FIRST_VERSION.form]
    forms = RecordCodec([SECRET, OTHER]).forms
    assert forms == [RecordCodec([secret]).encode(WHOLE).form for secret in (SECRET, OTHER)]


def test_encrypted_task_record_body_is_refused_in_the_row_of_another_task_or_another_caller():
    codec = RecordCodec([SECRET])
    row, other = codec.encode(WHOLE), codec.encode(attrs.evolve(WHOLE, id="other", scope="bob"))
    with pytest.raises(UnreadableRecord, match="modified"):
        codec.decode(attrs.evolve(row, id=other.id))
    with pytest.raises(UnreadableRecord, match="scope"):
        codec.decode(attrs.evolve(row, scope=other.scope))


@pytest.mark.parametrize("secrets", [(), (SECRET,)], ids=["plain", "sealed"])
def test_damaged_task_record_body_is_refused(secrets: tuple[bytes, ...]):
    codec = RecordCodec(secrets)
    row = codec.encode(WHOLE)
    for body in (
        b"",
        row.body[:-1],
        b"\xff" + row.body[1:],
        bytes(100),
        msgspec.msgpack.encode(["\udfff".encode("utf-8", "surrogatepass")]),
    ):
        with pytest.raises(UnreadableRecord):
            codec.decode(attrs.evolve(row, body=body))


def test_error_for_an_unreadable_task_record_row_contains_none_of_its_content():
    row = RecordCodec().encode(attrs.evolve(WHOLE, phase=TaskPhase.WORKING, message="a rare word"))
    with pytest.raises(UnreadableRecord) as caught:
        RecordCodec().decode(attrs.evolve(row, body=row.body.replace(b"working", b"walking")))
    assert "rare" not in str(caught.value)


def test_task_record_codec_looks_up_text_with_a_lone_surrogate_but_refuses_to_store_such_text():
    assert RecordCodec().scope_keys("\ud800") == [b"\xed\xa0\x80"]
    with pytest.raises(ValueError, match="surrogates"):
        RecordCodec().encode(attrs.evolve(WHOLE, message="\ud800"))


def test_short_secret_is_refused_when_the_task_record_codec_is_created():
    with pytest.raises(ValueError, match="at least 32 bytes"):
        RecordCodec([b"short"])


def test_repr_of_a_task_record_row_contains_no_content():
    assert "report" not in repr(RecordCodec().encode(WHOLE))


_FIRST_READS = """
import msgspec
from trio_mcp.auth.storage import persistent, records
from trio_mcp.stores import record_codec

for late in (record_codec._Content, persistent._StoredFile, records._File, records.StoredAuthorization):
    late.__annotations__ = dict.fromkeys(late.__annotations__, "Nothing_of_this_name")
content = ["", "tools/call", "build", b"{}", "2025-11-25", b"{}", "fail", False, 0, 0, None, None, 1, "working", None]
content += [{}, {}, None, None, None, 1]
for read, data in (
    (record_codec._contents.decode, msgspec.msgpack.encode(content)),
    (persistent._stored_files.decode, b'{"server_url": "https://a.example", "record": {}}'),
    (records.StoredAuthorization.from_json, records.StoredAuthorization().to_json()),
):
    print(type(read(data)).__name__)
"""


@pytest.mark.commands
def test_modules_of_stored_classes_compile_their_decoders_when_the_modules_are_imported() -> None:
    read = subprocess.run([sys.executable, "-c", _FIRST_READS], capture_output=True, text=True, timeout=PATIENCE)
    assert read.stdout.split() == ["_Content", "_StoredFile", "StoredAuthorization"], read.stderr
