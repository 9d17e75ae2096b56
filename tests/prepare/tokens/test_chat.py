"""`pack --chat`: conversations by a tokenizer's own template, and the loss mask of what an assistant says."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.internals import ChatReader, Meter, load_spec, load_template, main, waiting_name, work_name
from tests.prepare.chat_styles import STYLES, conversations, write_tokenizer
from tests.prepare.conftest import names_in, write_lines

import penstock as ps
from penstock.errors import ConfigError, Corrupt, FormatError, PenstockError, PrepareError, Unsupported
from penstock.store import LocalStore

CHATML = STYLES["chatml"]
Packed = Callable[..., Any]


def turns(number: int, answer: str | None = None) -> dict[str, Any]:
    said = f"It is the number {number}." if answer is None else answer
    asked = {"role": "user", "content": f"What is {number}? " + "x" * (number % 50)}
    return {"messages": [asked, {"role": "assistant", "content": said}]}


@pytest.fixture
def chatml(bpe2: Path, tmp_path: Path) -> Path:
    return write_tokenizer(bpe2, tmp_path / "tokenizer", CHATML)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", (turns(n) for n in range(400)))


@pytest.fixture
def packed(tmp_path: Path, chatml: Path, lines: Path) -> Packed:
    def run(output: str = "out.pbin", given: Any = lines, **options: Any) -> Any:
        options = {"tokenizer": chatml, "chat": True, "executor": "inline"} | options
        return ps.pack(given, f"{tmp_path}/{output}", **options)

    return run


def with_template(bpe2: Path, folder: Path, template: Any) -> Path:
    return write_tokenizer(bpe2, folder, CHATML, template)


def stored(path: Path | str) -> list[tuple[list[int], list[int]]]:
    source: Any = ps.open(path)
    return [
        (one["tokens"].tolist(), one["loss_mask"].astype(int).tolist())
        for one in map(source.__getitem__, range(len(source)))
    ]


@pytest.mark.parametrize("name", STYLES)
def test_as_transformers(name: str, golden: Path, bpe2: Path, tmp_path: Path) -> None:
    """`tests/interop/test_transformers.py` holds the goldens to the real package."""
    style, told = STYLES[name], json.loads((golden / "chat" / "expected.json").read_text())[name]
    tokenizer = write_tokenizer(bpe2, tmp_path / "tokenizer", style)
    lines = write_lines(tmp_path / "in.jsonl", conversations(style))
    ps.pack(lines, tmp_path / "out.pbin", tokenizer=tokenizer, chat=True, executor="inline")
    for (ids, mask), one in zip(stored(tmp_path / "out.pbin"), told, strict=True):
        extra = len(ids) - len(one["ids"])  # every document ends in EOS, which nobody generated if it is put there
        assert (ids[: len(ids) - extra], mask) == (one["ids"], one["mask"] + [0] * extra)
        assert extra in (0, 1)


@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("out.pbin", {}),
        ("out.idx", {}),
        ("out.zarr", {"to": "flat-tokens"}),
        ("out/", {"file_tokens": 2000}),
        ("out/", {"file_tokens": 2000, "to": "megatron"}),
        ("out/", {"file_tokens": 2000, "to": "flat-tokens"}),
    ],
)
def test_every_output(output: str, options: dict[str, Any], packed: Packed, tmp_path: Path) -> None:
    packed("plain.pbin")
    report = packed(output, task_bytes=3000, **options)
    path = f"{tmp_path}/{output}"
    assert stored(path) == stored(tmp_path / "plain.pbin")
    assert ps.verify(path, depth="full") == []
    assert report.documents == 400
    assert report.num_unmasked == 0
    source: Any = ps.open(path)
    batch = ps.Chunk(64, labels="shift")(source).get_batch(np.arange(4))
    assert 0 < batch["loss_mask"].mean() < 1


@pytest.mark.parametrize("output", ["out.pbin", "out/"])
def test_same_bytes_whoever_works(output: str, packed: Packed, tmp_path: Path, lines: Path) -> None:
    files = {"file_tokens": 2000} if output.endswith("/") else {}
    packed(f"a-{output}", **files)
    packed(f"b-{output}", workers=2, executor="processes", task_bytes=5000, **files)
    for part in range(3):
        packed(f"c-{output}", task_bytes=4000, part=(part, 3), **files)
    packed(f"c-{output}", task_bytes=4000, finish=True, **files)
    contents = [
        {one.name.removeprefix(f"{x}-"): one.read_bytes() for one in found if one.is_file()}
        for x in "abc"
        for found in [sorted((tmp_path / f"{x}-{output}").glob("*") if files else tmp_path.glob(f"{x}-out.pbin*"))]
    ]
    assert len(contents[0]) >= 4
    assert contents[0] == contents[1] == contents[2]


def test_compressed_and_parquet(packed: Packed, tmp_path: Path, lines: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    packed()
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    packed("gz.pbin", tmp_path / "in.jsonl.gz", task_bytes=3000)
    pq.write_table(
        pa.Table.from_pylist([json.loads(one) for one in lines.read_text().splitlines()]), tmp_path / "in.parquet"
    )
    packed("parquet.pbin", tmp_path / "in.parquet")
    assert stored(tmp_path / "gz.pbin") == stored(tmp_path / "out.pbin") == stored(tmp_path / "parquet.pbin")


def test_the_side_file_tells_the_template(packed: Packed, tmp_path: Path, chatml: Path, bpe2: Path) -> None:
    first = packed().manifest.options
    assert len(first["chat"]) == 32
    assert first["field"] == "messages"
    other = with_template(bpe2, tmp_path / "other", CHATML.template + " ")
    assert packed("other.pbin", tokenizer=other).manifest.options["chat"] != first["chat"]


def test_a_template_of_its_own_file_and_of_several(packed: Packed, bpe2: Path, tmp_path: Path) -> None:
    packed()
    listed = [{"name": "default", "template": CHATML.template}, {"name": "tool_use", "template": "{{ tools }}"}]
    packed("listed.pbin", tokenizer=with_template(bpe2, tmp_path / "listed", listed))
    beside = with_template(bpe2, tmp_path / "beside", "{{ raise_exception('not this one') }}")
    (beside / "chat_template.jinja").write_text(CHATML.template)
    packed("beside.pbin", tokenizer=beside)
    assert stored(tmp_path / "listed.pbin") == stored(tmp_path / "out.pbin") == stored(tmp_path / "beside.pbin")
    (beside / "additional_chat_templates").mkdir()
    (beside / "additional_chat_templates" / "tool_use.jinja").write_text(
        "{{ tools[0].name }}{% generation %}b{% endgeneration %}"
    )
    tools = write_lines(tmp_path / "tools.jsonl", [turns(1) | {"tools": [{"name": "a"}]}])
    packed("tools.pbin", tools, tokenizer=beside)
    [(_, mask)] = stored(tmp_path / "tools.pbin")
    assert mask[:2] == [0, 1]


BAD_LINES = {
    '{"text": "a"}': "no field 'messages'",
    '{"messages": []}': "the messages are empty",
    '{"messages": "hello"}': "the messages are text, not a list",
    '{"messages": [1]}': "message 1 is a number",
    '{"messages": [{"content": "a"}]}': "message 1 has no role",
    '{"messages": [{"role": 3, "content": "a"}]}': "a role that is a number",
    '{"messages": [{"role": "asistant", "content": "a"}]}': "unknown role 'asistant', did you mean 'assistant'?",
    '{"messages": [{"role": "user", "content": 5}]}': "content that is a number",
    '{"messages": [{"role": "user"}]}': "message 1 has no content",
    '{"messages": [{"role": "user", "content": "a<|im_end|>"}]}': "control token '<|im_end|>'",
    '{"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "b"}]}': "chat template doesn't support them",
    '{"messages": [{"role": "user", "content": "a"}], "tools": 7}': "the tools aren't a list",
    '{"messages": [{"role": "user", "content": ["a"]}]}': "a part of message 1 is text, not an object",
    '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}': "the chat template fails",
    '{"messages": [{"role": "user", "content": "\\ud800"}]}': "surrogate",
    '{"messages": [{"role": "user", "content": "a"}': "not JSON",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_lines(line: str, packed: Packed, tmp_path: Path) -> None:
    given = tmp_path / "bad.jsonl"
    given.write_text(json.dumps(turns(1)) + "\n" + line + "\n" + json.dumps(turns(2)) + "\n")
    with pytest.raises(PrepareError) as raised:
        packed(given=given)
    assert raised.value.path == str(given)
    assert "line 2: " in raised.value.what
    assert BAD_LINES[line] in raised.value.what
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out.pbin").exists()
    report = packed(given=given, on_error="skip")
    assert [(one.file, one.line) for one in report.dropped] == [("bad.jsonl", 2)]
    assert len(stored(tmp_path / "out.pbin")) == 2


def test_control_tokens_that_are_allowed(packed: Packed, tmp_path: Path) -> None:
    asked = {"role": "user", "content": "a<|im_end|>b"}
    given = write_lines(tmp_path / "one.jsonl", [{"messages": [asked, {"role": "assistant", "content": "c"}]}])
    packed(given=given, keep_control_tokens=True)
    [(ids, _)] = stored(tmp_path / "out.pbin")
    assert ids.count(2) == 3, "of two messages, and of that text"


BAD_TEMPLATES = {
    "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}": "too many steps",
    "{% for a in range(9) recursive %}{% if loop.depth < 99 %}{{ loop(range(9)) }}{% endif %}{% endfor %}": "",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}": "RecursionError",
    "{{ range(9999999999) | list }}": "a range that is too long",
    "{{ 'a' * 9999999999 }}": "too much text",
    "{% set n = namespace(a='aaaa') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}": "too many steps",
    "{% set n = namespace(a='aaaa') %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}": "too many steps",
    "{% set n = namespace(a=[1, 2]) %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}": "too many steps",
    "{{ 'a' | center(9999999999) }}": "pads text too far",
    "{{ 'a'.ljust(9999999999) }}": "pads text too far",
    "{{ '%9999999999d' % 1 }}": "pads text too far",
    "{{ '%9999999999d' | format(1) }}": "pads text too far",
    "{{ '{:9999999999}'.format(1) }}": "pads text too far",
    "{{ ('a' * 60000).replace('a', 'b' * 60000) }}": "too much text",
    "{{ ('a' * 60000) | replace('a', 'b' * 60000) }}": "too much text",
    "{{ 99999 ** 99999 }}": "a number that is too large",
    "{{ ''.__class__.__mro__ }}": "accesses something that isn't allowed",
    "{{ messages.__class__.__init__.__globals__ }}": "accesses something that isn't allowed",
    "{{ range.__self__.left }}": "accesses something that isn't allowed",
    "{{ self.__init__.__globals__ }}": "accesses something that isn't allowed",
    "{{ messages.append(1) }}": "accesses something that isn't allowed",
    "{{ nothing.at_all }}": "fails: UndefinedError",
    "{{ raise_exception('no, ' ~ 'never') }}": "the chat template raised an error: no, never",
    "{% include '/etc/passwd' %}": "fails",
    "{{ 1 // 0 }}": "ZeroDivisionError",
}


@pytest.mark.parametrize("template", BAD_TEMPLATES)
def test_bad_templates(template: str, packed: Packed, bpe2: Path, tmp_path: Path, lines: Path) -> None:
    tokenizer = with_template(bpe2, tmp_path / "bad", template)
    with pytest.raises(PrepareError) as raised:
        packed(tokenizer=tokenizer)
    assert raised.value.path == str(lines)
    assert "line 1: " in raised.value.what
    assert BAD_TEMPLATES[template] in raised.value.what
    assert not (tmp_path / "out.pbin").exists()


@pytest.mark.parametrize(
    ("template", "error", "said"),
    [
        ("{% for a in %}", Corrupt, "is not valid jinja2: line 1"),
        ("{% nonsense %}", Corrupt, "is not valid jinja2"),
        ("x" * (1 << 21), Corrupt, "too long"),
        (7, Corrupt, "not a chat template"),
        ([{"name": "default"}], Corrupt, "not a chat template"),
        ([{"name": "rag", "template": "a"}], ConfigError, "but no default"),
        ("{% macro a() %}{% generation %}b{% endgeneration %}{% endmacro %}{{ a() }}", ConfigError, "inside a macro"),
        ("{% set a %}{% generation %}b{% endgeneration %}{% endset %}{{ a }}", ConfigError, "inside a macro"),
    ],
)
def test_templates_that_are_none(
    template: Any, error: type[PenstockError], said: str, packed: Packed, bpe2: Path, tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        packed(tokenizer=with_template(bpe2, tmp_path / "bad", template))
    assert said in raised.value.what
    assert raised.value.path is not None
    assert not (tmp_path / work_name("out.pbin")[1:]).exists()


def test_the_day(packed: Packed, bpe2: Path, tmp_path: Path) -> None:
    template = "{{ strftime_now('%d %b %Y') }}" + CHATML.template
    tokenizer = with_template(bpe2, tmp_path / "dated", template)
    with pytest.raises(ConfigError, match="the current date"):
        packed(tokenizer=tokenizer)
    packed(tokenizer=tokenizer, chat_date="2024-07-26", restart=True)
    with pytest.raises(ConfigError, match="invalid chat date"):
        packed("b.pbin", tokenizer=tokenizer, chat_date="yesterday")
    with pytest.raises(ConfigError, match="this option only applies to conversations"):
        packed("b.pbin", chat=False, chat_date="2024-07-26")


def test_without_marks_each_rendering_begins_with_the_one_before(packed: Packed, bpe2: Path, tmp_path: Path) -> None:
    packed()
    packed("b.pbin", tokenizer=with_template(bpe2, tmp_path / "unmarked", CHATML.unmarked))
    for (ids, mask), (other_ids, other) in zip(stored(tmp_path / "out.pbin"), stored(tmp_path / "b.pbin"), strict=True):
        assert ids == other_ids
        behind = [at for at, (one, two) in enumerate(zip(mask, other, strict=True)) if one != two]
        assert [ids[at] for at in behind] == [201], "the line end behind an answer"
    changes = "{% for m in messages %}{{ m.role if loop.last else '-' }}{{ m.content }}{% endfor %}"
    with pytest.raises(
        PrepareError, match=r"line 1: message 2: generated text can't be identified.* \{% generation %\}"
    ):
        packed("c.pbin", tokenizer=with_template(bpe2, tmp_path / "changes", changes))


def test_conversations_that_nobody_answers(
    packed: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str], chatml: Path
) -> None:
    alone = {"messages": [{"role": "user", "content": "anybody?"}]}
    few = write_lines(tmp_path / "few.jsonl", (alone if n in (150, 333) else turns(n) for n in range(400)))
    report = packed(given=few, task_bytes=3000)
    assert report.num_unmasked == 2
    assert [(one.file, one.line) for one in report.unmasked] == [("few.jsonl", 151), ("few.jsonl", 334)]
    many = write_lines(tmp_path / "many.jsonl", (alone if n % 10 == 3 else turns(n) for n in range(400)))
    for output in ("many.pbin", "many/"):
        with pytest.raises(PrepareError, match="no token is generated in 40 of 400 conversations") as raised:
            packed(output, many, task_bytes=3000)
        assert str(raised.value.found).startswith("many.jsonl line 4; many.jsonl line 14; ")
        assert not [name for name in names_in(tmp_path) if name.startswith("many.p") or "index" in name]
        report = packed(f"skip-{output}", many, task_bytes=3000, on_error="skip")
        assert (report.documents, report.num_dropped, report.num_unmasked) == (360, 40, 0)
        assert [one.line for one in report.dropped] == list(range(4, 400, 10))
        assert all(any(mask) for _, mask in stored(f"{tmp_path}/skip-{output}"))
    with pytest.raises(SystemExit):
        main(
            [
                "pack",
                str(few),
                "-o",
                str(tmp_path / "cli.pbin"),
                "--tokenizer",
                str(chatml),
                "--chat",
                "--executor",
                "inline",
            ]
        )
    assert "loss mask is all 0: few.jsonl line 151" in capsys.readouterr().err


def test_options_that_do_not_fit(packed: Packed, bpe2: Path, golden: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this tokenizer has no chat template"):
        packed(tokenizer=bpe2)
    with pytest.raises(Unsupported, match="can't store a loss mask"):
        packed("out/", to="mds")
    with pytest.raises(ConfigError, match="one field of JSON"):
        packed(field=["a", "b"])
    with pytest.raises(ConfigError, match="one field of JSON"):
        packed(input_format="text")
    renamed = write_lines(tmp_path / "renamed.jsonl", [{"data": {"turns": turns(1)["messages"]}}])
    packed(given=renamed, field="data.turns")
    assert len(stored(tmp_path / "out.pbin")) == 1


@pytest.mark.parametrize("output", ["out.pbin", "out.idx", "out.zarr", "out/"])
def test_masks_are_replaced_with_their_tokens(packed: Packed, tmp_path: Path, output: str) -> None:
    other = write_lines(tmp_path / "other.jsonl", [turns(n) for n in range(40, 60)])
    options = {"file_tokens": 2000} if output == "out/" else {"to": "flat-tokens"} if "zarr" in output else {}
    new = "new" + output.removeprefix("out")
    packed(output, **options)
    first = stored(tmp_path / output)
    packed(output, overwrite=True, **options)
    assert stored(tmp_path / output) == first
    packed(new, given=other, **options)
    for _ in range(2):
        packed(output, given=other, overwrite=True, **options)
        assert stored(tmp_path / output) == stored(tmp_path / new) == first[40:60]
        assert not ps.verify(tmp_path / output, depth="full")
    names = [one.name for one in (tmp_path / output if output == "out/" else tmp_path).iterdir()]
    assert sum(".plane." in one and not one.startswith("new") for one in names) == 1
    with pytest.raises(ConfigError, match="data with planes can't be replaced"):
        packed(output, given=other, overwrite=True, chat=False, field="messages.0.content", **options)


def test_a_dry_run(packed: Packed, tmp_path: Path) -> None:
    before = names_in(tmp_path)
    report = packed(dry_run=True)
    assert 350 < report.documents < 450
    assert names_in(tmp_path) == before


def test_excluded_lines_stay_out(packed: Packed, lines: Path, tmp_path: Path) -> None:
    packed()
    ps.exclude(lines, indices=[3, 7], reason="test")
    packed("b.pbin", task_bytes=2000)
    whole = stored(tmp_path / "out.pbin")
    assert stored(tmp_path / "b.pbin") == [one for at, one in enumerate(whole) if at not in (3, 7)]


def test_killed_between_tokens_and_index(packed: Packed, tmp_path: Path) -> None:
    """Tokens are there, the index of planes still waits: it counts already, and whoever comes gives it its name."""
    packed()
    (tmp_path / "out.pbin.planes").rename(waiting_name(tmp_path / "out.pbin.planes"))
    assert stored(tmp_path / "out.pbin")
    with pytest.raises(ConfigError, match="exists"):
        packed()
    shutil.rmtree(tmp_path / work_name("out.pbin")[1:], ignore_errors=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={"role": st.sampled_from(["user", "assistant", "system", "tool", "x", 3]), "content": JSON, "extra": JSON},
)


@pytest.fixture(scope="module")
def reader(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> ChatReader:
    base = golden / "modalities" / "tokenizers" / "bpe2"
    folder = write_tokenizer(base, tmp_path_factory.mktemp("chat") / "tokenizer", STYLES["qwen"])
    spec, _ = load_spec(folder, LocalStore(), eos=None, special_tokens=False)
    return ChatReader(("messages",), load_template(spec, LocalStore()))


@given(
    st.lists(
        st.fixed_dictionaries({"messages": JSON | st.lists(MESSAGE, max_size=3)}, optional={"tools": JSON}), max_size=4
    )
)
def test_any_json_is_text_or_a_fault(reader: ChatReader, lines: list[Any]) -> None:
    block = "".join(json.dumps(one) + "\n" for one in lines).encode()
    found = reader.read(block)
    assert len(found.texts) + len(found.faults) == len(found.lines) == len(lines)
    for text, spans in zip(found.texts, found.spans or [], strict=True):
        assert all(0 <= a < b <= len(text.decode()) for a, b in spans)


@given(st.binary(max_size=60))
def test_any_bytes_are_faults(reader: ChatReader, block: bytes) -> None:
    found = reader.read(block)
    assert len(found.texts) + len(found.faults) == len(found.lines)


@given(text=st.text("{}%-| ~().[]'ab1fornimesagt\n", max_size=60))
def test_any_template(golden: Path, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = golden / "modalities" / "tokenizers" / "bpe2"
    folder = write_tokenizer(base, tmp_path_factory.mktemp("chat") / "tokenizer", CHATML, text)
    spec, _ = load_spec(folder, LocalStore(), eos=None, special_tokens=False)
    try:
        found = ChatReader(("messages",), load_template(spec, LocalStore())).read(json.dumps(turns(1)).encode())
    except (ConfigError, FormatError):
        return
    finally:
        shutil.rmtree(folder)
    assert len(found.texts) + len(found.faults) == 1


ENDLESS = "{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(("often", "left_out"), [(0, 17), (5, 17), (20, None)], ids=["always", "often", "at times"])
def test_a_template_that_is_stopped_again_and_again(
    bpe2: Path, packed: Packed, tmp_path: Path, often: int, left_out: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time costs all the steps that it may take: with 10^6 lines it was a day, and no document."""
    begun: list[float] = []
    begin = Meter.begin

    def counted(meter: Meter, steps: int) -> None:
        begun.append(steps)
        begin(meter, steps)

    monkeypatch.setattr(Meter, "begin", counted)
    lines = tmp_path / "many.jsonl"
    users = ["bad" if not often or not number % often else "good" for number in range(300)]
    said = [[{"role": "user", "content": one}, {"role": "assistant", "content": "yes"}] for one in users]
    lines.write_text("".join(json.dumps({"messages": one}) + "\n" for one in said))
    bad = "{% if messages and messages[0].content == 'bad' %}" + ENDLESS + "{% endif %}"
    template = bad + "{% for one in messages %}{{ one.content }}{% endfor %}"
    tokenizer = with_template(bpe2, tmp_path / "stopping", template)
    if left_out is None:
        report = packed(given=lines, tokenizer=tokenizer, on_error="skip")
        assert report.documents == 285
    else:
        with pytest.raises(PrepareError, match=f"was stopped at {left_out} of"):
            packed(given=lines, tokenizer=tokenizer, on_error="skip")
        assert len(begun) <= 17 * max(1, 4 * often)
