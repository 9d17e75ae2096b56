"""Secrets of URLs: shown nowhere, and taken from the environment where a URL was written down without them."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock._secrets import AUTH, logger, redact
from penstock.check.verification import verify
from penstock.cli.main import main
from penstock.convert import convert
from penstock.errors import ConfigError, Denied, NotFound, PenstockError, Unreachable
from penstock.prepare.jsonl_index import build_index
from penstock.reshape.merge import merge
from penstock.store.fsspec_store import FsspecStore
from penstock.store.place import resolve
from penstock.store.side_file import encode_manifest
from penstock.testing import FileServer
from penstock.types import Action, Extent, Finding, Manifest

GOLDEN = Path(__file__).parent / "golden"
USER, PASSWORD = "reader", "pass-w0rd"
LEFT_OUT = "user and password were removed"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:p@h:80/x", "http://***@h:80/x"),
        ("see http://u:p@h/x, and http://u:q@h/y.", "see http://***@h/x, and http://***@h/y."),
        ("http://token@h/x", "http://***@h/x"),
        ("http://u:p%40@h/x", "http://***@h/x"),
        ("http://u:p@q@h/x", "http://***@h/x"),
        ("http://u:p/q@h/x", "http://***@h/x"),
        ("s3://KEY:se/cr+et@bucket/x", "s3://***@bucket/x"),
        ("S3://KEY:secret@bucket/x", "S3://***@bucket/x"),
        ("sftp://u:p@h/x", "sftp://***@h/x"),
        ("https://h/x?X-Sig=a&b=c;d=e#f=g", "https://h/x?X-Sig=***&b=***;d=***#f=***"),
        ("https://h/x?token: no", "https://h/x?***: no"),
        ('{"url": "http://u:p@h/x?a=b"}', '{"url": "http://***@h/x?a=***"}'),
        ("(http://h/x?a=b).", "(http://h/x?a=***)."),
        ("http://h/a,http://u:p@h/b", "http://h/a,http://***@h/b"),
        ("a=http://u:p@[::1]:80/x", "a=http://***@[::1]:80/x"),
    ],
)
def test_redacted(url: str, shown: str) -> None:
    assert redact(url) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("http://h:80/a@b", "http://[::1]:80/a@b", "s3://bucket/a@b:c@d", "s3://bucket/shard-?.tar", "a@b", "a:b@c"),
        *("hf://datasets/a/b@main/c", "abfs://container@account.dfs.core.windows.net/a", "dss://name@version/a"),
        *("file:///a?b", "x://y", "://u:p@h", "http://"),
    ],
)
def test_left_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_time_grows_with_the_text_alone() -> None:
    """A pattern that tries every beginning against every end would never come back from these."""
    for text in ("a" * 1_000_000 + "://", "a://" * 200_000, "http://" + "a:" * 300_000, "http://h?" + "=" * 500_000):
        redact(text)


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ConfigError, NotFound, Unreachable, Denied])
def test_no_field_of_an_error(kind: type[PenstockError]) -> None:
    url = f"http://{USER}:{PASSWORD}@h/x?sig={PASSWORD}"
    error = kind(f"at {url}", path=url, found=OSError(f"GET {url}"), expected=url, hint=f"Ask {url}")
    error.what = f"again {url}"
    for shown in (str(error), repr(error), repr(error.__dict__), repr(error.args), f"{error.path}{error.found}"):
        assert PASSWORD not in shown
        assert USER not in shown
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path) == (str(error), "http://***@h/x?sig=***")


def test_nor_an_error_chain_of_another_library() -> None:
    import fsspec

    class Broken(fsspec.AbstractFileSystem):
        protocol = "penstock-broken"

        def info(self, path: str, **_: Any) -> Any:
            raise ValueError(f"no such thing: {path}")

    fsspec.register_implementation("penstock-broken", Broken, clobber=True)
    with pytest.raises(Unreachable) as caught:
        FsspecStore("penstock-broken").size(f"penstock-broken://{USER}:{PASSWORD}@h/x")
    shown = "".join(traceback.format_exception(caught.value))
    assert "no such thing" in shown
    assert PASSWORD not in shown


def test_keys_in_the_url_of_a_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="URLs can't contain credentials") as caught:
        resolve(f"s3://{USER}:{PASSWORD}@bucket/x")
    assert PASSWORD not in str(caught.value)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)
    with pytest.raises(SystemExit):
        main(["info", f"s3://{USER}:{PASSWORD}@bucket/x"])
    with pytest.raises(SystemExit):
        main(["head", "a.pbin", f"http://{USER}:{PASSWORD}@h/x"])
    assert PASSWORD not in "".join(capsys.readouterr())


# --- what is open --------------------------------------------------------------------------------------------------


DATASETS: dict[str, dict[str, Any]] = {
    "p/a.pbin": {},
    "m/a.bin": {"format": "megatron"},
    "mds": {"format": "mds"},
    "tars": {"format": "webdataset"},
    "a.jsonl": {"format": "jsonl"},
    "e.jsonl": {"format": "jsonl", "flavor": "energon"},
    "flat": {"format": "flat-tokens"},
    "ids.bin": {"format": "raw-tokens", "layout": "uint16", "eos_id": 0},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    folder = tmp_path_factory.mktemp("data")
    for path, format in (("p/a.pbin", "pbin"), ("m/a.bin", "megatron"), ("flat", "flat-tokens")):
        with ps.create(folder / path, format=format, token_bytes=2) as writer:
            for size in range(2, 6):
                writer.write({"tokens": [*range(1, size), 0]})
    with ps.create(folder / "mds", format="mds", columns={"n": "int"}) as writer:
        writer.write({"n": 1})
    with ps.create(folder / "tars", format="webdataset") as writer:
        writer.write({"__key__": "k", "txt": b"text"})
    for name in ("a.jsonl", "e.jsonl"):
        (folder / name).write_text('{"n": 1}\n{"n": 2}\n')
    (folder / "ids.bin").write_bytes(b"\1\0\0\0" * 8)
    files = {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    with FileServer(files) as server:
        server.auth = f"{USER}:{PASSWORD}"
        yield server


@pytest.fixture
def base(server: FileServer) -> str:
    return server.url.replace("http://", f"http://{USER}:{PASSWORD}@")


@pytest.mark.parametrize("name", DATASETS)
def test_sources_and_recipes(
    name: str, base: str, server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = ps.open(f"{base}/{name}", **DATASETS[name])
    sample = source[0]
    recipe = source.recipe()
    shown = [str(source), repr(source), json.dumps(recipe), repr(getattr(source, "_store", ""))]
    shown += [source.summary() if hasattr(source, "summary") else "", source.fingerprint]
    assert not [one for one in shown if PASSWORD in one or USER in one]
    assert recipe["path"].startswith("http://***@127.0.0.1")
    path = tmp_path / "a.json"
    path.write_text(json.dumps(recipe))
    monkeypatch.delenv(AUTH, raising=False)
    with pytest.raises(ConfigError, match=LEFT_OUT) as caught:
        ps.open_recipe(path)
    host = server.url.removeprefix("http://")
    assert f"Set {AUTH}=user:password@{host}" in str(caught.value)
    monkeypatch.setenv(AUTH, f"other:one@elsewhere {USER}:{PASSWORD}@{host}")
    again = ps.open_recipe(path)
    assert again.fingerprint == source.fingerprint
    assert str(again[0]) == str(sample)
    monkeypatch.setenv(AUTH, f"{USER}:{PASSWORD}@elsewhere")
    with pytest.raises(ConfigError, match=LEFT_OUT):
        ps.open_recipe(path)


def test_a_wrong_password(server: FileServer) -> None:
    wrong = PASSWORD[::-1]
    with pytest.raises(Denied) as caught:
        ps.open(server.url.replace("http://", f"http://{USER}:{wrong}@") + "/p/a.pbin", format="pbin")
    shown = "".join(traceback.format_exception(caught.value))
    assert wrong not in shown
    assert "***@127.0.0.1" in shown


@pytest.mark.parametrize("line", ["info @", "head @", "verify @", "info @ --json", "verify @ --json", "head @x"])
def test_commands(line: str, base: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(line.replace("@", f"{base}/p/a.pbin").split())
    said = "".join(capsys.readouterr())
    assert "***@127.0.0.1" in said or line == "head @"
    assert PASSWORD not in said
    assert USER not in said


def test_side_files(base: str, tmp_path: Path) -> None:
    for name in ("merge", "convert"):
        target = tmp_path / f"{name}.pbin"
        if name == "merge":
            merge([f"{base}/p/a.pbin", f"{base}/p/a.pbin"], target)
        else:
            convert(f"{base}/p/a.pbin", target)
        assert not [one for one in tmp_path.rglob("*") if one.is_file() and PASSWORD.encode() in one.read_bytes()]
    manifest = Manifest(
        format="x", num_samples=1, size_bytes=1, block_digests={}, binding="", tool="", options={"of": f"{base}/x?a=b"}
    )
    assert PASSWORD.encode() not in encode_manifest(manifest)
    assert b"?a=***" in encode_manifest(manifest)


def test_what_verbs_hand_back(base: str, tmp_path: Path) -> None:
    """Their `repr` stood in notebooks and logs."""
    handed: list[object] = [
        *verify(f"{base}/mds", depth="full"),
        Finding("a.b", "error", f"{base}/x"),
        Action("a.b", f"{base}/x", f"from {base}"),
        Extent(f"{base}/x", 0, 1),
        merge([f"{base}/p/a.pbin", f"{base}/p/a.pbin"], tmp_path / "merged.pbin"),
        build_index(f"{base}/a.jsonl", tmp_path / "a.idx"),
        ps.open(f"{base}/p/a.pbin"),
    ]
    assert not [one for one in map(repr, handed) if PASSWORD in one or USER in one]
    assert all("***@127.0.0.1" in repr(one) for one in handed[-5:-3])


def test_the_log(base: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock"):
        logger().info("%s: made", f"{base}/x")
        logging.getLogger("penstock").warning(f"{base}/x")
    assert [record.getMessage().partition("@")[0] for record in caplog.records] == ["http://***"] * 2


def test_every_logger_is_that_one() -> None:
    sources = Path(ps.__file__).parent.rglob("*.py")
    found = [one.name for one in sources if "getLogger(" in one.read_text().replace('getLogger("ray")', "Ray's own")]
    assert found == ["_secrets.py"]
