"""`RecordCodec`: encodes task records as database rows, optionally encrypted, and decodes them.

Every decoding failure raises `UnreadableRecord`. The bytes are untrusted, since anyone who can write to the storage
chooses them. Decoders raise more exceptions than they document: msgspec also raises `UnicodeDecodeError` and
`RecursionError`, and a value of another type raises `TypeError`.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import attrs
import msgspec

from ..classes import frozen
from ..jsonrpc.errors import clean
from .sealing import BadSeal, SealingKey, check_secrets, derived_key
from .task_store import OnRestart, Outcome, TaskPhase, TaskRecord, UnknownForm, UnreadableRecord

logger = logging.getLogger("trio_mcp")

T = TypeVar("T")
D = TypeVar("D")

SESSION: Final = tuple[bytes, bytes]
"""Types of the columns of a stored session: state and mark."""
STREAM: Final = tuple[bytes, bytes, int, int, bytes, int]
"""Types of the columns of a stored stream: holder, request id, last and dropped number, note, end time."""
LINES: Final = list[bytes]
"""Type of the stored events of a stream."""
_MAX_REASON_LENGTH: Final = 200


def decode_stored(what: str, decode: Callable[[D], T], data: D) -> T:
    """Return ``decode(data)``. If this fails, raise `UnreadableRecord`.

    ``what`` names the data in the error message.
    """
    try:
        return decode(data)
    except UnreadableRecord:
        raise
    except Exception as error:
        words = clean(str(error)[:_MAX_REASON_LENGTH]) or type(error).__name__
        raise UnreadableRecord(f"{what} cannot be read: {words}") from None


def decode_readable(decode: Callable[[D], T], rows: Iterable[D]) -> Iterator[T]:
    """Decode the ``rows`` of claimed tasks. Rows that can't be read are logged and skipped, so that this process can
    still claim the other tasks."""
    for row in rows:
        try:
            yield decode(row)
        except UnreadableRecord:
            # No process claims the task before its lease ends, so this error is logged at most once per lease.
            logger.exception("An abandoned task cannot be read, so no process runs it")


def decode_columns(what: str, row: Any, kinds: type[T]) -> T:
    """Return the values in ``row`` as a tuple, after checking that they have the types ``kinds``.

    Raises `UnreadableRecord` for other types: an SQLite column may contain values of any type, and a Redis hash may
    lack fields.
    """
    return decode_stored(what, partial(msgspec.convert, type=kinds), row)


_FORMAT: Final = b"\x01"
"""Version of `_Content`. A new field at its end, with a default, needs no new version: an older process that doesn't
know the field replaces it with the default when the record changes. Every other change needs a new version, and earlier
versions must stay readable."""
_PURPOSE: Final = b"trio-mcp task record 1 "
_FINGERPRINT: Final = 8
"""Length of the fingerprint that distinguishes secret keys without revealing anything about them."""


@frozen
class StoredRecord:
    """A task record as a database row.

    Fields that a store itself searches or changes have their own columns, and all other fields are in ``body``.
    """

    id: bytes
    """The `TaskRecord.id` as bytes."""
    scope: bytes
    """Key of the record's scope, one of `RecordCodec.scope_keys`."""
    name: str
    """Key of the record's name, one of `RecordCodec.name_keys`."""
    place: int
    """The value of `TaskRecord.position`."""
    kept_until: int | None
    """The value of `TaskRecord.kept_until`."""
    is_open: bool
    """True while the task can be claimed once its lease has expired."""
    holder: str | None
    """The value of `TaskRecord.holder`."""
    leased_until: int
    """End of the lease in milliseconds since the epoch. 0 if the task has no holder."""
    epoch: int
    """The value of `TaskRecord.epoch`."""
    version: int
    """The value of `TaskRecord.version`."""
    mark: bytes
    """The value of `TaskRecord.mark`."""
    form: bytes
    """Identifies the version and the secret of the ``body``. If this codec can read the row, it is one of
    `RecordCodec.forms`."""
    body: bytes = attrs.field(repr=False)
    """The rest of the record, encrypted if the codec has secrets."""


class _Content(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a task record that are stored in the column ``body``."""

    scope: str
    method: str
    name: str
    params: bytes
    revision: str
    capabilities: bytes
    on_restart: OnRestart
    is_external: bool
    created_at: int
    updated_at: int
    expires_at: int | None
    kept_until: int | None
    poll_ms: int
    phase: TaskPhase
    message: str | None
    questions: dict[str, bytes]
    answers: dict[str, bytes]
    outcome: Outcome | None
    checkpoint: bytes | None
    cancel_reason: str | None
    attempt: int
    asked: dict[str, tuple[str, ...]] = {}
    continuation: bytes | None = None


_Numbers: Final = tuple[int, int, int, int]
_Claim: Final = tuple[str | None, bytes]

# Create the decoder at import, because msgspec 0.22 crashes if two threads create a decoder for one class at once.
_contents: Final = msgspec.msgpack.Decoder(_Content)


@frozen
class _SecretKeys:
    """The encryption and hash keys that are derived from one of the server's secrets."""

    seal: SealingKey
    scope: bytes = attrs.field(repr=False)
    name: bytes = attrs.field(repr=False)


class RecordCodec:
    """Encodes task records as database rows, and decodes such rows.

    With ``secrets``, the body is encrypted with AES-256-GCM, and the scope and the name are replaced by keyed hashes.
    The id, the times, the holder and the numbers stay readable. The first secret encrypts, and all secrets decrypt. To
    rotate, put a new secret first.

    With secrets, an unencrypted row is rejected like a modified one. An attacker who can write to the storage, but has
    no secret, can delete records and change their holders, but can't create records or exchange them.

    Raises `ValueError` for a secret of less than 32 bytes, and `TypeError` for `str`.
    """

    def __init__(self, secrets: Sequence[bytes] = ()) -> None:
        self._secrets = check_secrets(secrets)

    @cached_property
    def _forms(self) -> dict[bytes, _SecretKeys | None]:
        if not self._secrets:
            return {_FORMAT: None}
        return {
            _FORMAT + derived_key(secret, _PURPOSE + b"fingerprint")[:_FINGERPRINT]: _SecretKeys(
                SealingKey(secret, _PURPOSE + b"body"),
                derived_key(secret, _PURPOSE + b"scope"),
                derived_key(secret, _PURPOSE + b"name"),
            )
            for secret in self._secrets
        }

    @property
    def forms(self) -> Sequence[bytes]:
        """Identifiers of the row formats that this codec can decode: one for each secret from which encryption keys are
        derived, or a single one without secrets.

        New rows store the first identifier as `StoredRecord.form`.
        """
        return list(self._forms)

    def scope_keys(self, scope: str) -> Sequence[bytes]:
        """Return the values of the column ``scope`` by which rows of this scope can be found: one hash for each secret
        of this codec. New rows get the first hash.

        Without secrets, the only value is the encoded scope itself.
        """
        name = encoded(scope)
        return [name if keys is None else hmac.digest(keys.scope, name, "sha256") for keys in self._forms.values()]

    def name_keys(self, name: str) -> Sequence[str]:
        """Return the values of the column ``name`` by which tasks with this name can be found: one hash for each secret
        of this codec. New rows get the first hash.

        Without secrets, the only value is the encoded name itself.
        """
        text = encoded(name)
        return [
            (text if keys is None else hmac.digest(keys.name, text, "sha256")).hex() for keys in self._forms.values()
        ]

    def encode(self, record: TaskRecord) -> StoredRecord:
        """Encode the task ``record`` as a row. Raises `ValueError` if a string isn't valid Unicode."""
        values = [getattr(record, name) for name in _Content.__struct_fields__]
        # msgspec can only encode a mapping that is a dict, so dict() converts the others.
        body = msgspec.msgpack.encode(_Content(*values), enc_hook=dict)
        form, keys = next(iter(self._forms.items()))
        task_id = encoded(record.id)
        return StoredRecord(
            id=task_id,
            scope=self.scope_keys(record.scope)[0],
            name=self.name_keys(record.name)[0],
            place=record.position,
            kept_until=record.kept_until,
            is_open=record.is_open,
            holder=record.holder,
            leased_until=0 if record.holder is None else record.leased_until,
            epoch=record.epoch,
            version=record.version,
            mark=record.mark,
            form=form,
            body=body if keys is None else keys.seal.seal(body, form + task_id),
        )

    def decode(self, row: StoredRecord) -> TaskRecord:
        """Decode ``row`` as a task record. Raises `UnreadableRecord` if that fails.

        Raises `UnknownForm` instead if another process may be able to decode the row.
        """
        return decode_stored("a record", self._decode, row)

    def _decode(self, row: StoredRecord) -> TaskRecord:
        content = _contents.decode(self._unseal(row))
        # Anyone who can write to the storage can change the columns, so compare them with the encrypted values.
        # If this method accepted a row with a changed scope column, another principal could read the task.
        if row.scope not in self.scope_keys(content.scope):
            raise UnreadableRecord(
                "the scope column of a stored task was modified: it differs from the scope in the encrypted record"
            )
        numbers = (row.place, row.epoch, row.leased_until, row.version)
        place, epoch, leased_until, version = decode_columns("a record", numbers, _Numbers)
        holder, mark = decode_columns("a record", (row.holder, row.mark), _Claim)
        return TaskRecord(
            id=decoded(row.id),
            position=place,
            holder=holder,
            epoch=epoch,
            leased_until=leased_until,
            version=version,
            mark=mark,
            **msgspec.structs.asdict(content),
        )

    def _unseal(self, row: StoredRecord) -> bytes:
        if row.form not in self._forms:
            # Refuse a row that isn't encrypted, because it can be created without knowing a secret.
            is_unsealed = row.form == _FORMAT
            raise (UnreadableRecord if is_unsealed else UnknownForm)(self._unknown_form_reason(row.form))
        keys = self._forms[row.form]
        if keys is None:
            return row.body
        try:
            return keys.seal.open(row.body, row.form + row.id)
        except BadSeal:
            raise UnreadableRecord(
                "cannot decrypt a task record: it was damaged, or modified without the secret"
            ) from None

    def _unknown_form_reason(self, form: bytes) -> str:
        if form[:1] != _FORMAT:
            return f"a record is of version {form[:1].hex()}, but this version of trio-mcp supports {_FORMAT.hex()}"
        if not self._secrets:
            return "a record is encrypted: the store needs its secret"
        if form == _FORMAT:
            return "a record is not encrypted, although this store has secrets"
        return "a record is encrypted with none of the secrets of this store"


def encoded(text: str) -> bytes:
    """Encode a string as bytes. Encoded strings sort in the same order as the strings themselves.

    Any string is accepted, because a peer may send strings that aren't valid Unicode.
    """
    return text.encode(errors="surrogatepass")


def decoded(name: bytes) -> str:
    """Return the string for ``name``, bytes that `encoded` has returned. Raises `UnreadableRecord` for invalid
    bytes."""
    return decode_stored("a name", lambda data: data.decode(errors="surrogatepass"), name)
