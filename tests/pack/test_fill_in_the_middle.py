"""Documents rearranged for filling in the middle, by seed and document number alone."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.abc import SupportsDocumentFlags
from penstock.errors import ConfigError, ResumeMismatch
from penstock.testing import TokenSourceLaws
from penstock.testing.memory import MemoryTokens

PRE, MID, SUF, EOS = 1001, 1002, 1003, 0
IDS: dict[str, int] = {"prefix_id": PRE, "middle_id": MID, "suffix_id": SUF}


def memory(documents: list[list[int]], eos_id: int | None = EOS) -> Any:
    return MemoryTokens(documents, eos_id=eos_id, dtype="uint16")


def documents(count: int, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [[*draw.integers(1, 1000, int(draw.integers(0, 40))).tolist(), EOS] for _ in range(count)]


def fim(source: Any, rate: float = 0.5, spm_rate: float = 0.5, seed: int = 7, **options: Any) -> Any:
    return ps.FillInTheMiddle(source, rate=rate, spm_rate=spm_rate, seed=seed, **IDS, **options)


def put_back(ids: list[int]) -> tuple[str, list[int]]:
    """The form of a document, and what it was."""
    if PRE not in ids:
        return "as it was", ids
    body, end = (ids[:-1], ids[-1:]) if ids[-1] == EOS else (ids, [])
    assert body[0] == PRE
    assert (body.count(PRE), body.count(MID), body.count(SUF)) == (1, 1, 1)
    suffix_at, middle_at = body.index(SUF), body.index(MID)
    assert suffix_at < middle_at
    if suffix_at == 1 and body[middle_at + 1 :]:  # PRE SUF suffix MID prefix middle, or an empty prefix: the same text
        return "SPM", [*body[middle_at + 1 :], *body[2:middle_at], *end]
    return "PSM", [*body[1:suffix_at], *body[middle_at + 1 :], *body[suffix_at + 1 : middle_at], *end]


def test_every_document_can_be_put_back() -> None:
    given = documents(2000)
    forms: list[str] = []
    for at, one in enumerate(map(fim(memory(given)).__getitem__, range(2000))):
        form, text = put_back(one["tokens"].tolist())
        assert text == given[at]
        forms.append(form)
    counts = {form: forms.count(form) for form in ("as it was", "PSM", "SPM")}
    assert 900 < counts["as it was"] < 1100
    assert 380 < counts["PSM"] < 620
    assert 380 < counts["SPM"] < 620


def test_only_one_form() -> None:
    given = [[*range(1, 200), EOS] for _ in range(50)]
    psm, spm = fim(memory(given), 1, 0), fim(memory(given), 1, 1)
    for at in range(50):
        first, second = psm[at]["tokens"].tolist(), spm[at]["tokens"].tolist()
        assert first[0] == second[0] == PRE
        assert second[1] == SUF
        assert len(first) == len(second) == 203
        middle = first[first.index(MID) + 1 : -1]
        assert second[-1 - len(middle) : -1] == middle or not middle, "cut at the same places"
        assert put_back(first)[1] == put_back(second)[1] == given[at]
    assert fim(memory(given), 0).tokens(0, 200).tolist() == given[0]


def test_cuts_are_uniform() -> None:
    given = [[*range(1, 11), EOS]] * 6000
    source = fim(memory(given), 1, 0)
    first = np.zeros(11)
    for at in range(6000):
        first[source[at]["tokens"].tolist().index(SUF) - 1] += 1
    expected = np.array([2 * (10 - one) + 1 for one in range(11)]) / 121  # the smaller one of two
    assert abs(first / 6000 - expected).max() < 0.03


def test_golden() -> None:
    """Other versions give the same: `fill-in-the-middle-1`."""
    source = fim(memory([[10, 11, 12, 13, 14, 15, EOS]] * 6), 1)
    assert [source[at]["tokens"].tolist() for at in range(6)] == GOLDEN


@given(
    st.lists(st.lists(st.integers(1, 999), max_size=6), min_size=1, max_size=8),
    st.sampled_from([EOS, None]),
    st.integers(-5, 1 << 70),
    st.data(),
)
@settings(max_examples=60)
def test_any_tokens_are_those_of_the_documents(given: Any, eos_id: int | None, seed: int, data: Any) -> None:
    given = [[*one, EOS] if eos_id is not None else one for one in given]
    source = fim(memory(given, eos_id), 0.6, seed=seed)
    whole = [one for at in range(len(source)) for one in source[at]["tokens"].tolist()]
    assert source.num_tokens == len(whole)
    assert (
        source.doc_starts.tolist() == np.cumsum([0, *(len(source[at]["tokens"]) for at in range(len(source)))]).tolist()
    )
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert source.tokens(start, stop).tolist() == whole[start:stop]
    if stop > start:
        length = stop - start
        starts = np.arange(len(whole) - length + 1)
        assert source.gather(starts, length).tolist() == [whole[at : at + length] for at in starts]
        flags = source.gather_starts(starts, length)
        begins = set(source.doc_starts[:-1].tolist())
        assert flags.tolist() == [[place in begins for place in range(at, at + length)] for at in starts.tolist()]


def test_it_is_a_token_source(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=EOS) as writer:
        for one in documents(200):
            writer.write({"tokens": np.array(one, np.uint16)})
    source = fim(ps.open(tmp_path / "a.pbin"))
    again = pickle.loads(pickle.dumps(source))
    assert again.fingerprint == source.fingerprint != fim(ps.open(tmp_path / "a.pbin"), seed=8).fingerprint
    assert isinstance(source, SupportsDocumentFlags)
    stream = ps.Shuffle(ps.Chunk(32, labels="shift")(source), 3)
    later = ps.Shuffle(ps.Chunk(32, labels="shift")(again), 3)
    for position in (0, 5, 77):
        assert stream[position]["inputs"].tolist() == later[position]["inputs"].tolist()
    for packing in (ps.BestFit(64), ps.Whole(48), ps.MegatronBlocks(16)):
        windows: Any = packing(source)
        assert len(windows)
        assert windows[0]
    assert "FillInTheMiddle" in str(stream)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate": 1.5}, "rate must be a fraction"),
        ({"spm_rate": -1}, "spm_rate must be a fraction"),
        ({"prefix_id": 70000}, "prefix_id is not a valid token"),
        ({"middle_id": EOS}, "middle_id is not a valid token"),
        ({"middle_id": PRE}, "must differ"),
    ],
)
def test_what_can_not_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ps.FillInTheMiddle(memory(documents(3)), **{"rate": 0.5, "seed": 1, **IDS, **options})


class TestLaws(TokenSourceLaws):
    @pytest.fixture
    def expected(self) -> list[Any]:
        source = fim(memory(documents(40)))
        return [source[at] for at in range(40)]

    @pytest.fixture
    def source(self) -> Any:
        return fim(memory(documents(40)))


@pytest.mark.parametrize("name", ["prefix_id", "seed"])
def test_what_is_no_integer(name: str) -> None:
    """1.5 was taken for 1."""
    options: dict[str, Any] = {"prefix_id": PRE, "middle_id": MID, "suffix_id": SUF, "seed": 1, name: 1.5}
    with pytest.raises(TypeError, match="integer"):
        ps.FillInTheMiddle(memory([[1, 2]]), rate=0.5, **options)


def test_planes_and_lists_are_refused(tmp_path: Path) -> None:
    with ps.create(
        tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=EOS, planes={"loss_mask": "bool"}
    ) as writer:
        writer.write({"tokens": [1, 2, EOS], "loss_mask": [True] * 3})
        writer.write({"tokens": [3, EOS], "loss_mask": [True] * 2})
    with pytest.raises(ConfigError, match="planes"):
        fim(ps.open(tmp_path / "a.pbin"))
    ps.exclude(tmp_path / "a.pbin", indices=[0], reason="test")
    with pytest.raises(ConfigError, match="exclude list"):
        fim(ps.open(tmp_path / "a.pbin", planes=None))


GOLDEN = [
    [1001, 1003, 15, 1002, 10, 11, 12, 13, 14, 0],
    [1001, 10, 1003, 1002, 11, 12, 13, 14, 15, 0],
    [1001, 10, 11, 1003, 13, 14, 15, 1002, 12, 0],
    [1001, 1003, 15, 1002, 10, 11, 12, 13, 14, 0],
    [1001, 1003, 1002, 10, 11, 12, 13, 14, 15, 0],
    [1001, 10, 11, 1003, 1002, 12, 13, 14, 15, 0],
]


def test_a_document_that_holds_one_of_the_tokens_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    given = [[5, 6, EOS], [7, MID, EOS], [SUF, 8, EOS]]
    source = fim(memory(given), rate=1.0)
    _ = [one["tokens"] for one in source]
    _ = source.tokens(0, source.num_tokens)
    assert [one.getMessage() for one in caplog.records] == [
        "document 1 already contains the fill-in-the-middle token 1002 and looks split there; there may be more"
    ]
    caplog.clear()
    _ = [one["tokens"] for one in fim(memory(documents(50)), rate=1.0)]
    assert not caplog.records


def test_bos_stays_first(tmp_path: Path) -> None:
    bos, docs = 5, [[5, 20 + n, 40 + n, 60 + n, EOS] for n in range(40)] + [[5], [5, EOS], [20, 5, 21, EOS], []]
    for name, options in (("recorded", {"bos_id": bos}), ("bare", {})):
        with ps.create(tmp_path / f"{name}.pbin", format="pbin", token_bytes=2, eos_id=EOS, options=options) as writer:
            for doc in docs:
                writer.write({"tokens": np.array(doc, np.uint16)})
    recorded: Any = ps.open(tmp_path / "recorded.pbin")
    kept = fim(recorded, rate=1.0)
    named = fim(ps.open(tmp_path / "bare.pbin"), rate=1.0, bos_id=bos)
    taken = fim(ps.Take(recorded, 0, len(docs)), rate=1.0)
    for index, doc in enumerate(docs):
        found = kept[index]["tokens"].tolist()
        assert found == named[index]["tokens"].tolist() == taken[index]["tokens"].tolist()
        begin = int(doc[:1] == [bos])
        assert found[:begin] == doc[:begin]
        assert put_back(found[begin:])[1] == doc[begin:]
    former = fim(recorded, rate=1.0, bos_id=None)
    assert all(former[n]["tokens"][0] == PRE for n in range(40))
    assert former.recipe()["bos_id"] is None
    assert kept.recipe()["bos_id"] == bos
    assert "bos_id" not in fim(ps.open(tmp_path / "bare.pbin"), rate=1.0).recipe()
    with pytest.raises(ConfigError, match="bos_id"):
        fim(recorded, bos_id=PRE)


def test_a_state_whose_bos_would_stay_elsewhere_names_the_change(tmp_path: Path) -> None:
    """A recipe of version 0.2.0 has no `bos_id`: it is that of today's data without a record."""
    docs = [[5, 20 + n, 40 + n, 60 + n, EOS] for n in range(40)]
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=EOS, options={"bos_id": 5}) as writer:
        for doc in docs:
            writer.write({"tokens": np.array(doc, np.uint16)})

    def loader(**options: Any) -> Any:
        stream = ps.Shuffle(ps.Chunk(8, labels="shift")(fim(ps.open(tmp_path / "a.pbin"), rate=0.5, **options)), 3)
        return ps.Loader(stream, global_batch=2, rank=0, world=1, workers=0)

    class Former(ps.FillInTheMiddle):
        def recipe(self) -> dict[str, Any]:
            return {name: value for name, value in super().recipe().items() if name != "bos_id"}

    source: Any = ps.open(tmp_path / "a.pbin")
    old = Former(source, rate=0.5, spm_rate=0.5, seed=7, bos_id=None, **IDS)
    state = ps.Loader(
        ps.Shuffle(ps.Chunk(8, labels="shift")(old), 3), global_batch=2, rank=0, world=1, workers=0
    ).state_dict()
    with pytest.raises(ResumeMismatch, match="bos-first"):
        loader().load_state_dict(state)
    assert loader(bos_id=None).load_state_dict(state) == []
    assert len(loader().load_state_dict(state, accept=["bos-first"])) == 1
