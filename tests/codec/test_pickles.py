"""Pickled pair lists: equal to CPython's own bytes, and nothing else is read."""

import pickle
import pickletools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.pickles import EMPTY_LIST, PairListEncoder, decode_pairs, ends_like_pickle, feed_pairs, first_pair
from penstock.errors import Corrupt, FormatError, TooLarge, Truncated, UnsafeData

NUMBERS = st.one_of(
    st.integers(0, 300), st.integers(0, 70_000), st.integers(2**31 - 2, 2**40), st.integers(0, 2**63 - 1)
)
BORDERS = [2**bits + step for bits in (0, 7, 8, 15, 16, 31, 32, 39, 40, 47, 48, 55, 56, 62) for step in (-1, 0, 1)]


def pairs_of(items):
    return np.array(items, np.int64).reshape(-1, 2)


def encode(pairs, step):
    encoder = PairListEncoder()
    pieces = [encoder.encode(pairs[start : start + step]) for start in range(0, len(pairs), step)]
    return b"".join(pieces) + encoder.finish()


def decode(data, **options):
    return decode_pairs(np.frombuffer(data, np.uint8), path="a.idx", **options)


def pickled(pairs, protocol=4):
    return pickle.dumps([(int(a), int(b)) for a, b in pairs], protocol)


def contiguous(count, length, first=0):
    lengths = np.full(count, length, np.int64) if np.isscalar(length) else np.asarray(length, np.int64)
    return np.stack([first + np.cumsum(lengths) - lengths, lengths], 1)


class TestEncoder:
    @pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 1002, 2000, 2001, 9000])
    @pytest.mark.parametrize("first", [0, 2**31 - 5000, 2**40, 2**47 - 5000, 2**62])
    def test_equals_cpython(self, count, first):
        pairs = contiguous(count, np.arange(count) % 700 * 101, first)
        assert encode(pairs, 10_000) == pickled(pairs)

    def test_every_size_of_number(self):
        pairs = pairs_of([(a, b) for a in BORDERS for b in BORDERS])
        assert encode(pairs, 100) == pickled(pairs)

    @settings(deadline=None, max_examples=40)
    @given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40), st.integers(1, 50))
    def test_any_list_in_any_pieces(self, items, step):
        assert encode(pairs_of(items), step) == pickled(items)

    @pytest.mark.parametrize("step", [1, 7, 1000, 8192, 20_000])
    def test_pieces_do_not_matter_over_many_frames(self, step):
        pairs = contiguous(20_000, np.arange(20_000) % 300)
        assert encode(pairs, step) == pickled(pairs)

    @pytest.mark.parametrize("pairs", [[[-1, 0]], [[0, -1]]])
    def test_refuses_negative_numbers(self, pairs):
        with pytest.raises(TooLarge):
            PairListEncoder().encode(np.array(pairs))

    def test_refuses_what_no_reader_could_hold(self):
        with pytest.raises(TooLarge):
            PairListEncoder().encode(np.array([[0, 2**63]], np.uint64))

    def test_refuses_other_shapes(self):
        with pytest.raises(TypeError):
            PairListEncoder().encode(np.zeros((2, 3), np.int64))


class TestDecode:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    @pytest.mark.parametrize("count", [0, 1, 2, 1000, 1001, 9000])
    def test_every_protocol(self, protocol, count):
        pairs = contiguous(count, np.arange(count) % 700 * 101, 2**31 - 9000)
        assert np.array_equal(decode(pickled(pairs, protocol)), pairs)

    @settings(deadline=None, max_examples=40)
    @given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40), st.sampled_from([2, 3, 4, 5]))
    def test_any_list(self, items, protocol):
        assert np.array_equal(decode(pickled(items, protocol)), pairs_of(items))

    def test_empty_list(self):
        assert decode(EMPTY_LIST).shape == (0, 2)

    @pytest.mark.parametrize("length", [0x9486, 0x86, 0x94860000 >> 8, 0x2865, 0x95])
    def test_numbers_that_look_like_opcodes(self, length):
        pairs = contiguous(3000, length, 0x94869486)
        pairs[::7, 1] = 0x28659486
        assert np.array_equal(decode(pickled(pairs)), pairs)

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_tuples_without_memo(self, protocol):
        pairs = contiguous(50, 1000)
        assert np.array_equal(decode(pickletools.optimize(pickled(pairs, protocol))), pairs)

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_a_list_that_repeats_its_tuples(self, protocol):
        items = [(place * 1000, 1000) for place in range(1500)]
        items = items + items[3:900] + [(1, 2)] + items[:2]
        assert np.array_equal(decode(pickle.dumps(items, protocol)), pairs_of(items))

    def test_a_mapped_file_may_start_anywhere(self):
        pairs = contiguous(3000, 1000)
        shifted = np.frombuffer(b"x" + pickled(pairs), np.uint8)[1:]
        assert np.array_equal(decode_pairs(shifted, path="a.idx"), pairs)


class TestRefusals:
    @pytest.mark.parametrize("size", range(0, 30))
    def test_cut_off(self, size):
        with pytest.raises((Truncated, Corrupt)):
            decode(pickled(contiguous(3, 1000))[:size])

    def test_cut_off_in_a_run(self):
        data = bytearray(pickled(contiguous(3000, 1000)))
        with pytest.raises(Truncated) as caught:
            decode(bytes(data[:-500]), offset_bytes=100)
        assert caught.value.offset_bytes == 102

    def test_bytes_behind_the_end(self):
        data = pickled(contiguous(3, 1000))
        with pytest.raises(Corrupt, match="follow") as caught:
            decode(data + b"x")
        assert caught.value.offset_bytes == len(data)

    @pytest.mark.parametrize("opcode", [b"c", b"\x93", b"R", b"b", b"i", b"o", b"\x81", b"\x92", b"\x82", b"P", b"Q"])
    @pytest.mark.parametrize("place", [2, 4, 5, 7, 9])
    def test_opcodes_that_run_code(self, opcode, place):
        data = pickletools.optimize(pickle.dumps([(1, 2), (3, 4)], 3))
        with pytest.raises((UnsafeData, Corrupt)) as caught:
            decode(data[:place] + opcode + data[place:])
        assert (caught.value.offset_bytes or 0) <= place + 2

    def test_code_behind_a_long_run(self):
        data = pickled(contiguous(3000, 1000))[:-2] + b"cos\nsystem\n."
        with pytest.raises(UnsafeData) as caught:
            decode(data, offset_bytes=7)
        assert caught.value.offset_bytes == 7 + len(data) - 12
        assert caught.value.path == "a.idx"

    @pytest.mark.parametrize(
        "value", [[], {}, (), "text", [1, 2], [(1,)], [(1, 2, 3)], [(1, "2")], [(1, None)], [(1.0, 2)], [[1, 2]], None]
    )
    def test_other_values(self, value):
        data = pickle.dumps(value, 4)
        if value == []:
            assert len(decode(data)) == 0
            return
        with pytest.raises(Corrupt) as caught:
            decode(data)
        assert caught.value.offset_bytes is not None

    @pytest.mark.parametrize(("pair", "kind"), [((-1, 2), Corrupt), ((1, -(2**40)), Corrupt), ((2**63, 1), TooLarge)])
    def test_numbers_out_of_range(self, pair, kind):
        items = [(place * 1000, 1000) for place in range(200)] + [pair]
        with pytest.raises(kind):
            decode(pickle.dumps(items, 4))

    def test_a_frame_longer_than_the_file(self):
        with pytest.raises(Truncated):
            decode(b"\x80\x04\x95" + b"\xff" * 8 + b"]\x94.")

    def test_a_number_longer_than_the_file(self):
        with pytest.raises(Truncated):
            decode(b"\x80\x04]\x94(\x8a\xff\x01")

    @pytest.mark.parametrize("repeat", [b"h\x01", b"h\x07", b"j\xff\xff\xff\xff"])
    def test_a_repeat_of_nothing(self, repeat):
        with pytest.raises(Corrupt, match="repeats"):
            decode(b"\x80\x04]\x94(" + repeat + b"e.")

    def test_memo_numbers_out_of_turn(self):
        with pytest.raises(Corrupt, match="memo"):
            decode(b"\x80\x02]q\x00(K\x01K\x02\x86r\xff\xff\xff\xffe.")

    @settings(deadline=None, max_examples=60)
    @given(st.data())
    def test_a_changed_byte_is_another_list_or_a_refusal(self, data):
        good = bytearray(pickled(contiguous(40, 300, 2**31 - 6000)))
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
        try:
            pairs = decode(bytes(good))
        except (FormatError, UnsafeData):
            return
        assert pairs.tolist() == [list(pair) for pair in pickle.loads(bytes(good))]


class TestPeeks:
    @pytest.mark.parametrize("count", [1, 2, 1001, 9000])
    def test_first_pair(self, count):
        data = pickled(contiguous(count, 2**35, 2**40))
        assert first_pair(data[:64]) == (2**40, 2**35)
        assert ends_like_pickle(data[-8:])

    @pytest.mark.parametrize("head", [b"", b"\x80", EMPTY_LIST, b"x" * 64, bytes(64), b"\x80\x04]\x94(K"])
    def test_no_first_pair(self, head):
        assert first_pair(head) is None

    def test_tails(self):
        assert ends_like_pickle(EMPTY_LIST)
        assert not ends_like_pickle(b"tokens, not a pickle")
        assert not ends_like_pickle(b"")


class TestRuns:
    @pytest.mark.parametrize("count", [0, 1, 1000, 70_000, 140_000])
    def test_the_same_pairs_in_runs(self, count):
        pairs = contiguous(count, np.arange(count) % 700 * 101)
        runs = [np.empty((0, 2), np.int64)]
        assert feed_pairs(np.frombuffer(pickled(pairs), np.uint8), lambda run: runs.append(run.copy()), path="a.idx")
        assert np.array_equal(np.concatenate(runs), pairs)
        assert max(map(len, runs)) <= 1 << 16

    def test_a_tuple_that_stands_there_twice(self):
        again = (300, 7)
        data = np.frombuffer(pickle.dumps([(1, 2), again, again], 4), np.uint8)
        assert not feed_pairs(data, lambda run: None, path="a.idx")

    def test_what_is_no_list(self):
        with pytest.raises(UnsafeData):
            feed_pairs(np.frombuffer(pickle.dumps([print], 2), np.uint8), lambda run: None, path="a.idx")
