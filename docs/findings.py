"""Codes of findings: their meanings, and a scan of the source for codes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "penstock"
_PREFIXES = dict.fromkeys(("fault", "Damage", "_of_error"), "flat-tokens.")
_CALLS = {"Finding", "Problem", "_problem", "_warning", "find_unlisted", *_PREFIXES}
_CODE = re.compile(r"(<format>|[a-z][a-z_-]*)(\.[a-z][a-z_-]*)+")


def codes_in_source() -> set[str]:
    """Return every code that `verify`, `lint` or `repair` can report, with `<format>` for a variable format."""
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    own = {path: dict(_module_constants(tree)) for path, tree in trees.items()}
    shared = {name: text for constants in own.values() for name, text in constants.items()}
    codes: set[str] = set()
    for path, tree in trees.items():
        if not any(callee in texts[path] for callee in _CALLS):
            continue
        names = shared | own[path] | ({"NAME": "token-files"} if path.parent.name == "folder" else {})
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (callee := _name(node.func)) in _CALLS:
                reported = {_text(one, names) for one in (node.args if callee == "find_unlisted" else node.args[:1])}
                reported = {one for one in reported if _CODE.fullmatch(one)}
                prefix = _PREFIXES.get(callee)
                codes |= {f"{prefix}{one.replace('<format>', '<array>')}" for one in reported} if prefix else reported
    return codes


def _module_constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from _constants(node.targets[0], node.value)


def _constants(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    match target, value:
        case ast.Name(id=name), ast.Constant(value=str(text)):
            yield name, text
        case ast.Tuple(elts=names), ast.Tuple(elts=values):
            for one in zip(names, values, strict=True):
                yield from _constants(*one)
        case _:
            pass


def _name(callee: ast.expr) -> str:
    return callee.id if isinstance(callee, ast.Name) else callee.attr if isinstance(callee, ast.Attribute) else ""


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return constants.get(name, "")
        case ast.JoinedStr(values=values):
            return "".join(_text(one, constants) for one in values)
        case ast.FormattedValue(value=value):
            return _text(value, constants) or "<format>"
        case _:
            return ""


def findings_table() -> Iterator[str]:
    """Lines of the table of findings."""
    yield from ("| code | meaning |", "|---|---|")
    yield from (f"| `{code}` | {meaning} |" for code, meaning in sorted(FINDINGS.items()))


FINDINGS: dict[str, str] = {
    "<format>.changed": "The size, counts or fingerprint of the data differ from its side file.",
    "<format>.chat-markers": "The chat template uses markers that aren't single tokens of the tokenizer.",
    "<format>.damaged": "A file can't be read.",
    "<format>.digest": "The content differs from the recorded digest.",
    "<format>.exclude-list": "The exclude list can't be read, or doesn't belong to this dataset.",
    "<format>.line": "A line isn't valid (`lint`).",
    "<format>.loss-mask": "A loss mask has another length than its tokens, or values other than 0 and 1.",
    "<format>.missing-split": "A split that the dataset lists is missing.",
    "<format>.no-eos": "Documents don't end with the id given by `--eos-id`.",
    "<format>.no-file": "A file referenced by a recipe or sample doesn't exist.",
    "<format>.old-chat": "Version 0.2.0 packed these conversations, with other rules for marks and the end of turns.",
    "<format>.pixels": "Stored pixels differ from decoded ones: 16-bit images, EXIF orientation, or alpha.",
    "<format>.plane": "A plane is missing, damaged, or has another length than its tokens.",
    "<format>.plane-unlisted": "A plane exists that the side file doesn't record.",
    "<format>.planes": "The recorded planes can't be read.",
    "<format>.row-map": "The row map is damaged or belongs to other data.",
    "<format>.sample": "A sample can't be decoded (`lint`).",
    "<format>.side-file": "The side file is damaged or contradicts the data.",
    "<format>.token-range": "Token ids are larger than the vocabulary (`--vocab-size`).",
    "<format>.unsafe": "Reading the data would run code, or leave its folder.",
    "flat-tokens.chunk.crc": "A chunk differs from its checksum.",
    "flat-tokens.chunk.decode": "A chunk can't be decompressed.",
    "flat-tokens.chunk.present": "A chunk is missing.",
    "flat-tokens.chunk.size": "A chunk has another size than the array states.",
    "flat-tokens.dataset.splits": "A split contradicts the others.",
    "flat-tokens.encoded_tokens.name": "The array of tokens has its old name.",
    "flat-tokens.encoded_tokens.present": "The array of tokens is missing.",
    "flat-tokens.group.present": "The zarr group is missing.",
    "flat-tokens.metadata.codec": "The metadata names a codec that can't be read.",
    "flat-tokens.metadata.consolidated": "The consolidated metadata contradicts the arrays.",
    "flat-tokens.metadata.parse": "The metadata is damaged.",
    "flat-tokens.<array>.present": "An array of the group is missing.",
    "flat-tokens.max_token_id.covers": "A token is larger than `max_token_id`.",
    "flat-tokens.max_token_id.integer": "`max_token_id` isn't an integer.",
    "flat-tokens.max_token_id.present": "`max_token_id` is missing.",
    "flat-tokens.max_token_id.range": "`max_token_id` is out of range.",
    "flat-tokens.seq_starts.first_zero": "`seq_starts` doesn't begin with 0.",
    "flat-tokens.seq_starts.monotone": "`seq_starts` falls, or exceeds the number of tokens.",
    "flat-tokens.seq_starts.nonempty": "`seq_starts` has no entry.",
    "flat-tokens.seq_starts.present": "`seq_starts` is missing.",
    "flat-tokens.seq_starts.read": "`seq_starts` can't be read.",
    "flat-tokens.shard.index_crc": "The index of a zarr shard differs from its checksum.",
    "folder.added": "A file isn't in the index of the folder.",
    "folder.changed": "A file changed after it was indexed.",
    "folder.empty": "No samples.",
    "folder.media-differs": "Recorded media metadata differs from the file.",
    "folder.media-index": "The media index is damaged.",
    "folder.media-stale": "The media index is older than the files.",
    "folder.missing": "A file of the index is missing.",
    "hf.damaged": "An Arrow file can't be read.",
    "hf.features": "`dataset_info.json` contradicts the schema of the files.",
    "hf.unlisted": "An Arrow file isn't listed in `state.json`, or a split in `dataset_dict.json`.",
    "jsonl.energon-index": "Energon's `.idx` contradicts the lines.",
    "jsonl.invalid-line": "A line isn't valid JSON.",
    "jsonl.no-index": "The index of Modalities, `.idx`, is missing, and Energon's too.",
    "levanter.absent": "A field lacks files that levanter may leave out.",
    "levanter.damaged": "The cache contradicts its ledger, or can't be read.",
    "litdata.damaged": "A chunk can't be read.",
    "litdata.missing": "A chunk of the index is missing.",
    "litdata.size": "A chunk has another size than the index states.",
    "litdata.unlisted": "A chunk isn't in the index.",
    "megatron.apart": "Documents of the index overlap, or leave gaps.",
    "megatron.empty": "No documents.",
    "megatron.id": "Token ids are not in the vocabulary.",
    "megatron.missing": "The `.bin` or `.idx` is missing.",
    "megatron.replaced": "Files of a replaced dataset are left over.",
    "megatron.sequence": "The index points to a sequence that the `.bin` does not have.",
    "megatron.tokens": "The tokens can't be read.",
    "megatron.trailing": "The `.bin` continues after its last sequence.",
    "megatron.truncated": "The `.bin` ends before its last sequence.",
    "megatron.width": "The index states another token width than its lengths and the size of the `.bin`.",
    "pbin.empty": "No tokens.",
    "pbin.old-layout": "An older layout of the header.",
    "pbin.side-file": "The side file contradicts the header.",
    "pbin.token-bytes": "Ids that the stated width can't hold.",
    "raw-tokens.array": "The `.npy` isn't a one-dimensional array of ids.",
    "raw-tokens.empty": "No tokens.",
    "recipe.damaged": "The recipe can't be opened.",
    "recipe.missing-file": "A sample names a file that its auxiliary directory lacks.",
    "recipe.repeated": "The recipe reads the same samples under two names.",
    "raw-tokens.header": "The header is damaged.",
    "raw-tokens.id": "Token ids are not in the vocabulary.",
    "raw-tokens.no-eos": "Documents don't end with the EOS id.",
    "raw-tokens.size": "The size isn't a multiple of the token width.",
    "raw-tokens.table": "The table of documents contradicts the tokens.",
    "raw-tokens.version": "A version of the header that isn't known.",
    "samples.not-decoded": "Samples weren't decoded: that runs code, several splits exist, or opening fails.",
    "shards.config": "The writer's configuration of a shard contradicts the index.",
    "shards.empty": "A shard without samples.",
    "shards.hash": "A shard differs from its hash in the index.",
    "shards.index": "`index.json` is damaged.",
    "shards.link": "A link leaves the folder.",
    "shards.missing": "A shard of the index is missing.",
    "shards.no-config": "A shard lacks its embedded configuration.",
    "shards.missing-split": "The folder `train` has neither shards nor an index.",
    "shards.no-index": "`index.json` is missing.",
    "shards.sample": "A sample can't be decoded.",
    "shards.shard": "A shard contradicts its own header.",
    "shards.size": "A shard has another size than the index states.",
    "shards.unfinished": "A writer didn't finish.",
    "shards.unknown-hash": "A hash algorithm that isn't known.",
    "shards.unlisted": "No index lists this shard.",
    "token-files.changed": "A file changed after the directory was indexed.",
    "token-files.counts": "A file has another number of documents or tokens than the index states.",
    "token-files.digest": "The content differs from the recorded digest.",
    "token-files.file": "A file can't be read, or is of another format than the rest.",
    "token-files.index": "`index.json` is damaged.",
    "token-files.max-token-id": "The largest id differs from the recorded one.",
    "token-files.missing": "A file of the index is missing.",
    "token-files.token-range": "Token ids are not in the vocabulary.",
    "token-files.unfinished": "The directory isn't finished.",
    "token-files.unlisted": "A token file isn't in the index.",
    "token-files.work": "The work directory of a finished run is left over.",
    "webdataset.after-end": "Data, or more zeros than padding, after a shard's end-of-archive mark.",
    "webdataset.changed": "A shard changed after it was prepared.",
    "webdataset.count": "A shard has another number of samples than recorded.",
    "webdataset.exclude": "An `exclude` entry matches nothing.",
    "webdataset.ignored": "Members of a shard are ignored.",
    "webdataset.index": "The `.tar.idx` or `.nv-meta` index is damaged.",
    "webdataset.json": "A part isn't valid JSON.",
    "webdataset.keys": "Stored keys contradict the shards.",
    "webdataset.links": "Links or special members in a shard.",
    "webdataset.media-differs": "Recorded media metadata differs from the sample.",
    "webdataset.media-index": "The media index is damaged.",
    "webdataset.missing-file": "A file of `.nv-meta` that the side file implies is missing.",
    "webdataset.missing-shard": "A shard of a split is missing.",
    "webdataset.name": "A member name that Energon reads differently, or not at all.",
    "webdataset.no-end": "A shard has no end-of-archive mark, and may be truncated.",
    "webdataset.only-links": "A sample consists only of links.",
    "webdataset.repeated-key": "Two samples have the same key.",
    "webdataset.repeated-part": "A sample has the same part twice.",
    "webdataset.splits": "`split.yaml` is damaged.",
    "webdataset.sqlite": "`index.sqlite` is damaged or contradicts the shards.",
    "webdataset.unlisted-shard": "A shard isn't in `.info.json`.",
    "webdataset.unused": "A shard isn't in any split.",
}
"""Code → meaning."""
