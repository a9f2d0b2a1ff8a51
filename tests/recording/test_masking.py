"""Masking of secrets in messages, by key names and by forms."""

from __future__ import annotations

import json
import re
import sys
import tracemalloc
from typing import Any

import pytest
from tests.instructions import instructions_of

from trio_mcp.recording import masking
from trio_mcp.recording.masking import LONGEST, Masking, names_secret

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"
JWE = "eyJhbGciOiJSU0EtT0FFUCJ9.OKOawDo13gRp2ojaHV7LFpZcgV7T6DVZKTyKOMTYUmKo.48V1_ALb6US04U3b.5eym8.XFBo"
KEY = """-----BEGIN RSA PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-256-CBC,6A1B2C3D-4E5F

MIIEpAIBAAKCAQEA
-----END RSA PRIVATE KEY-----"""

SECRET_NAMES = (
    *(
        "password",
        "Password",
        "passwd",
        "pwd",
        "userPwd",
        "db_pwd",
        "pass",
        "db_pass",
        "dbpass",
        "SMTP_PASS",
        "PGPASSWORD",
    ),
    *(
        "passphrase",
        "passcode",
        "pw",
        "otp",
        "otpCode",
        "totp",
        "pin",
        "user_pin",
        "pinCode",
        "psk",
        "secret",
        "clientSecret",
    ),
    *(
        "cookie",
        "cookies",
        "Set-Cookie",
        "sessionCookie",
        "session_id",
        "sessionId",
        "PHPSESSID",
        "JSESSIONID",
        "connect.sid",
    ),
    *("code_verifier", "codeVerifier", "tokenValue", "token_value", "token", "tokens", "access_token", "refreshToken"),
    *("idToken", "authtoken", "GITHUB_TOKEN", "csrf", "xsrf-token", "csrfmiddlewaretoken", "jwt", "bearer", "dpop"),
    *("apiKey", "api-key", "X-API-Key", "API_KEY", "apikey", "privateKey", "private_key_pem", "ssh_key", "signingKey"),
    *("encryption_key", "master-key", "AWS_SECRET_ACCESS_KEY", "account_key", "credential", "credentials"),
    *("authorization", "Proxy-Authorization", "auth", "basic_auth", "authCode", "authorization_code", "device_code"),
    *("recovery_codes", "verificationCode", "mfa_code", "client_assertion", "SAMLResponse", "connectionString"),
    *("OPENAI_KEY", "STRIPE_KEY", "pkce_verifier", "mfa", "2fa", "pswd", "priv_key", "user_code", "x-functions-key"),
    *("mnemonic", "seed_phrase", "cvv", "cardNumber", "ssn", "security_answer", "requestState"),
)
HARMLESS_NAMES = (
    *("max_tokens", "maxTokens", "total_tokens", "inputTokens", "outputTokens", "prompt_tokens", "token_count"),
    *("tokensUsed", "token_limit", "tokenizer", "progressToken", "tokens_per_second", "token_type", "token_endpoint"),
    *(
        "passenger",
        "passengers",
        "passed",
        "passing",
        "pass_rate",
        "bypass",
        "compass",
        "passport",
        "author",
        "authors",
    ),
    *("authority", "authentication", "auth_method", "authType", "key", "keys", "keyboard", "keyword", "public_key"),
    *("SSH_PUBLIC_KEY", "PRIMARY_KEY", "KEY", "sort_key", "KEYS", "variable", "value"),
    *("primaryKey", "secretary", "pinned", "opinion", "spin", "session", "cookie_policy", "code", "statusCode"),
    *("postal_code", "passwordLength", "password_policy", "passwordExpiresAt", "id", "name", "user", "encompass"),
    *("hash", "signature", "nonce", "seed", "cursor", "nextCursor", "taskId", "inside", "cookiecutter", "expires_in"),
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_value_of_a_field_with_a_secret_name_is_masked_in_data_and_text(name: str) -> None:
    assert names_secret(name)
    data = {"user": "ann", name: "hunter2"}
    forms = (
        *(
            data,
            json.dumps(data),
            json.dumps(data, indent=2),
            f"Here it is: {data}",
            f"see {json.dumps(json.dumps(data))}",
        ),
        *([f"{name}=hunter2", "user=ann"], [{"name": name, "value": "hunter2"}, {"name": "user", "value": "ann"}]),
        *([[name, "hunter2"], ["user", "ann"]], f"user: ann\n{name}: hunter2", f"run --user ann --{name} hunter2"),
        *(
            f"https://example.com/?user=ann&{name}=hunter2",
            f"user=ann; {name}=hunter2",
            f"<{name}>hunter2</{name}> ann",
        ),
    )
    for form in forms:
        masked = str(Masking().masked(form))
        assert "hunter2" not in masked, form
        assert "masked:" in masked
        assert "ann" in masked


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_value_of_a_field_with_a_harmless_name_is_not_masked(name: str) -> None:
    assert not names_secret(name)
    data = {name: "hunter2"}
    for form in (data, json.dumps(data), f"{name}=hunter2", f"{name}: hunter2", [{"name": name, "value": "hunter2"}]):
        assert Masking().masked(form) == form


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abcdefgh1234", "abcdefgh1234"),
        ("Authorization: Token xyz", "xyz"),
        ("Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("Cookie: session=k3y; theme=d4rk", "k3y; theme=d4rk"),
        ("curl -H 'Cookie: session=k3y'", "k3y"),
        ('Set-Cookie: a="k3y"; HttpOnly', "k3y"),
        ("https://ann:hunter2@example.com/path", "ann:hunter2"),
        ("postgres://ann:hun%40ter2@db:5432/x", "hun%40ter2"),
        ("postgres://ann:hun@ter2@db:5432/x", "hun@ter2"),
        ("postgres://ann:hun/ter2@db:5432/x", "hun/ter2"),
        ("postgres://ann:hun#ter2@db:5432/x", "hun#ter2"),
        ("postgres://ann:hun?ter2@db:5432/x", "hun?ter2"),
        ("redis://:p@ss/w#rd@redis:6379/0", "p@ss/w#rd"),
        ("https://proxy.example.com/https://ann:hunter2@example.com/", "hunter2"),
        ("https://example.com/?access_token=s3cr3tvalue&x=1", "s3cr3tvalue"),
        ("https://example.com/cb?code=SplxlOBeZQQYbYS6WxSbIA", "SplxlOBeZQQYbYS6WxSbIA"),
        ("https://example.com/#id_token=s3cr3tvalue", "s3cr3tvalue"),
        ("Server=db;User=ann;Password=hun&ter2;Database=x", "hun&ter2"),
        (f"the token is {JWT}", JWT),
        (f"jwt-{JWT}", JWT),
        (f"it is {JWE}", JWE),
        ("ghp_" + "a1" * 18, "a1" * 18),
        ("sk-proj-" + "b2" * 18, "b2" * 18),
        ("AKIA" + "ABCD" * 4, "ABCD" * 4),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA"),
        (KEY, "MIIEpAIBAAKCAQEA"),
        (KEY.replace("\n", "\\n"), "MIIEpAIBAAKCAQEA"),
        (KEY.replace("RSA ", "OPENSSH "), "MIIEpAIBAAKCAQEA"),
        ('it says {"password": "hun\\"ter2"} there', "ter2"),
        ('it says {\\"password\\": \\"hunter2\\"} there', "hunter2"),
        ("os.environ['API_KEY'] = 'hunter2'", "hunter2"),
        ("env: [{'name': 'API_KEY', 'value': 'hunter2'}]", "hunter2"),
        ('env: [{\\"name\\": \\"API_KEY\\", \\"value\\": \\"hunter2\\"}]', "hunter2"),
        ("- name: API_KEY\n    value: hunter2\n-", "hunter2"),
        ("\nDB_PASSWORD: correct horse\n", "correct horse"),
        ("the password: hunter,2;x}y", ",2;x}y"),
        ("run --password hunter,2;x", ",2;x"),
        ("{password: hunter, user: ann}", "hunter"),
        ("<password>'hun'ter2</password>", "ter2"),
        (KEY.replace("-----", "---- ", 1), "MIIEpAIBAAKCAQEA"),
    ],
)
def test_secret_in_a_text_is_masked_and_the_text_around_it_is_kept(text: str, secret: str) -> None:
    masked = Masking().masked({"content": [{"text": f"before {text} after"}]})["content"][0]["text"]
    assert secret not in masked
    assert "masked:" in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com/path?q=code&page=2",
        "mail ann@example.com",
        "the basic idea",
        "a basic understanding of things",
        "bearer of news",
        "a skeleton-key_is-no-key",
        "file:///tmp/a@b",
        "http://localhost:8080/@scope/package@1.2.3",
        "https://medium.com/@ann",
        "http://[::1]:8080/@ann",
        "password: The password of the user",
        "def sign_in(user: str, password: str, token: str | None = None) -> None: ...",
        "used 1,234 tokens: 500 in, 734 out",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        '{"tokens": 500, "author": "Ann",  "text": "indented as it was"}',
        "eyJhbGciOiJIUzI1NiJ9",
        "env: [{'name': 'PATH', 'value': '/bin'}]",
        "name: the token, value: of friendship",
        """<a href="/?token=">here</a> and <a href="/">there</a>""",
        "token: none, password=None, secret: ''",
        "e.g. eyJ.eyJ.",
    ],
)
def test_text_without_a_secret_is_not_masked(text: str) -> None:
    assert Masking().masked(text) == text


@pytest.mark.parametrize(
    ("headers", "hidden"),
    [
        ({"Authorization": "Bearer x"}, True),
        ({"X-API-Key": "k"}, True),
        ({"Cookie": "a=b"}, True),
        ({"Accept": "b"}, False),
    ],
)
def test_nested_arguments_with_secret_names_are_masked(headers: dict[str, str], hidden: bool) -> None:
    ((key, value),) = headers.items()
    assert names_secret(key) is hidden
    masked: Any = Masking().masked({"params": {"arguments": {"request": {"headers": headers}}}})
    assert (masked["params"]["arguments"]["request"]["headers"][key] == value) is not hidden


def test_equal_secrets_in_structured_content_and_text_content_get_equal_masks() -> None:
    data = {"user": "ann", "login": {"sessionId": "k3y", "pin": 123456789}}
    result = {"structuredContent": data, "content": [{"type": "text", "text": json.dumps(data, indent=2)}]}
    masked: Any = Masking().masked(result)
    assert json.loads(masked["content"][0]["text"]) == masked["structuredContent"]
    assert masked["structuredContent"]["user"] == "ann"
    assert masked["structuredContent"]["login"]["sessionId"].startswith("masked:")
    assert "123456789" not in str(masked)


@pytest.mark.parametrize("depth", [1, 3, 6])
def test_nested_json_strings_are_searched_for_secrets(depth: int) -> None:
    text: Any = {"password": {"old": "hunter2"}, "user": "ann"}
    for _ in range(depth):
        text = json.dumps({"inner": text})
    masked = Masking().masked(text)
    assert "hunter2" not in masked
    assert "ann" in masked


def test_schema_of_a_secret_field_is_recorded_without_its_example_values() -> None:
    schema = {
        "type": "object",
        "properties": {
            "password": {"type": "string", "description": "Yours", "default": "hunter2", "examples": ["hunter3"]},
            "user": {"type": "string", "default": "ann"},
        },
        "required": ["password", "token"],
    }
    masked: Any = Masking().masked(schema)
    password = masked["properties"]["password"]
    assert (password["type"], password["description"]) == ("string", "Yours")
    assert "hunter" not in str(password)
    assert masked["properties"]["user"] == schema["properties"]["user"]  # type: ignore[index]
    assert masked["required"] == schema["required"]


@pytest.mark.parametrize(
    "data",
    [
        ["mysql", "--password", "hunter2", "--user", "ann"],
        {"environmentVariables": [{"name": "X", "isSecret": True, "value": "hunter2"}]},
        {"Environment": [{"Key": "DB_PASS", "Value": "hunter2"}]},
        "DB_PASSWORD=hunter2 hunter2\nexport API_KEY='hunter2 hunter2'\n  - SECRET=hunter2,hunter2\nUSER=ann",
        {"argument": {"name": "token", "value": "hunter2"}},
        {"https://ann:hunter2@example.com": 1},
    ],
)
def test_value_is_masked_if_another_field_of_the_object_names_the_value_as_a_secret(data: Any) -> None:
    assert "hunter2" not in str(Masking().masked(data))


def test_text_too_long_to_search_for_secrets_is_replaced_by_a_mask_with_its_length() -> None:
    masking = Masking()
    just, longer = "x" * LONGEST, "x" * (LONGEST + 1)
    assert masking.masked(just) == just
    masked = masking.masked({"a": longer, "b": longer, "c": longer + "x", longer: 1})
    assert masked["a"] == masked["b"] != masked["c"]
    assert masked["a"].startswith("masked:")
    assert masked["a"].endswith(f" ({LONGEST + 1} characters)")
    assert max(map(len, masked)) < 100


def test_json_text_that_is_nested_too_deeply_is_masked_as_a_whole() -> None:
    masked = Masking().masked({"a": '{"a":' * 990 + "1" + "}" * 990, "b": "here"})
    assert masked["a"].startswith("masked:")
    assert masked["b"] == "here"


UNITS = (
    *("eyJ-", "eyJ", "eyJa.", "a", "a ", "a=", "token=a ", "password: x ", "://a:b ", "://a:b/", "://@", "a://", "@"),
    *("-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "-", "sk-", "bearer ", "<a ", "<password>", '"a":"b",', '{"a":'),
    *(
        "[",
        '["a",',
        '"[',
        "cookie: a=b;",
        "--a ",
        'a\\"',
        "'",
        "token='a",
        'token="\\',
        "=:",
        "\\",
        "basic aaaaaaaa ",
        "&code=",
    ),
    *(
        " =",
        "\n",
        "\ntoken=",
        "token=a b=",
        "ya29.",
        "AKIA",
        "A" * 90 + " ",
        "\u00e9",
        "authorization: a ",
        "://a:b@c ",
    ),
)


@pytest.mark.parametrize("unit", UNITS)
def test_masking_secrets_in_a_malicious_text_takes_linear_time(unit: str) -> None:
    """The steps within each pattern are counted by tests/test_pattern_costs.py."""

    def cost(count: int) -> int:
        text = unit * (count // len(unit))
        return instructions_of(lambda: Masking().masked({"arguments": {"text": text}}))

    cost(100)
    short, long = cost(3000), cost(6000)
    assert long < 2.3 * short + 500
    assert long < (45 if sys.version_info < (3, 12) else 60) * 6000  # newer ones count more


def test_secret_masking_does_not_keep_long_names_in_memory() -> None:
    masking = Masking()
    tracemalloc.start()
    try:
        for number in range(50):
            long = f"{number}" + "x" * 100_000
            masking.masked({"arguments": {"name": long, long: 1}})
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


@pytest.mark.parametrize("unit", UNITS)
def test_secret_masking_reads_each_value_only_once(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is no secret, and holds further names, would be read again behind each name."""
    read: list[int] = []
    kind_of = masking._kind_of  # pyright: ignore[reportPrivateUsage]

    class Reading:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self.pattern = pattern

        def match(self, text: str, position: int) -> re.Match[str] | None:
            found = self.pattern.match(text, position)
            read.append(0 if found is None else found.end() - position)
            return found

    monkeypatch.setattr(masking, "_kind_of", lambda *given: Reading(kind_of(*given)))
    for before in ("", "token: ", "token=", "--token "):
        read.clear()
        Masking().masked(before + unit * (3000 // len(unit)))
        assert sum(read) < 2 * 3100
