"""Meanings and fixes of the codes of findings, for `penstock verify --explain` and the errors page of the docs."""

from __future__ import annotations

import difflib
import textwrap

import click

from penstock.cli._errors import codes

_REPLACE = (
    "Restore the data, or copy it again. If the change was intended, `penstock verify --replace-manifest` replaces the "
    "side file."
)
_EOS = "`penstock repair PATH --eos-id ID` rebuilds the index from the EOS tokens. Otherwise copy the dataset again."
_BITS = "`penstock repair --write` rebuilds `seq_starts` from the start bits, and `max_token_id` from the tokens."
_INDEX = "`penstock repair --write` rebuilds `index.json` from the shards."
_MEDIA = "`penstock prepare-media` reads the headers of the files again."
_PREPARE = "`penstock repair --write` rebuilds the indexes from the shards, and `penstock prepare` all metadata."
_WARNING = "Nothing, if it is meant to be so."

_BY_FIX: dict[str, dict[str, str]] = {
    _REPLACE: {
        "<format>.changed": "The size, counts or fingerprint of the data differ from its side file.",
        "<format>.digest": "The content differs from the recorded digest.",
        "<format>.side-file": "The side file is damaged or contradicts the data.",
        "folder.added": "The side file doesn't list a file.",
        "folder.changed": "A file differs from the side file.",
        "folder.missing": "A file in the side file is missing.",
        "pbin.side-file": "The side file can't be read, or its table of documents contradicts the index.",
        "token-files.changed": "A file changed after the directory was indexed.",
        "webdataset.changed": "A shard differs from its digest in the side file.",
    },
    "Copy the data again, or recreate it.": {
        "<format>.damaged": "A file can't be read.",
        "<format>.missing-split": "A split that the dataset lists is missing.",
        "flat-tokens.<array>.present": "An array of the group is missing.",
        "flat-tokens.chunk.crc": "A chunk differs from its checksum.",
        "flat-tokens.chunk.decode": "A chunk can't be decompressed.",
        "flat-tokens.chunk.present": "A chunk is missing.",
        "flat-tokens.chunk.size": "The size of a chunk differs from the one that the array states.",
        "flat-tokens.encoded_tokens.present": "The array of tokens is missing.",
        "flat-tokens.metadata.parse": "The metadata is damaged.",
        "flat-tokens.shard.index_crc": "The index of a zarr shard differs from its checksum.",
        "hf.damaged": "An Arrow file can't be read.",
        "hf.features": "`dataset_info.json` contradicts the schema of the files.",
        "levanter.damaged": "The cache contradicts its ledger, or can't be read.",
        "litdata.damaged": "A chunk can't be read.",
        "litdata.missing": "A chunk of the index is missing.",
        "litdata.size": "The size of a chunk differs from the one in the index.",
        "megatron.tokens": "The tokens can't be read.",
        "raw-tokens.header": "The header is damaged.",
        "raw-tokens.size": "The size isn't a multiple of the token width.",
        "raw-tokens.table": "The table of documents contradicts the tokens.",
    },
    "Pack again with the tokenizer of the vocabulary, or correct --vocab-size.": {
        "<format>.token-range": "Token ids are larger than the vocabulary (`--vocab-size`).",
        "megatron.id": "Token ids aren't in the vocabulary.",
        "raw-tokens.id": "Token ids aren't in the vocabulary.",
        "token-files.token-range": "Token ids aren't in the vocabulary.",
    },
    "Pack again with --eos, or correct --eos-id.": {
        "<format>.no-eos": "Documents don't end with the id given by `--eos-id`.",
        "raw-tokens.no-eos": "Documents don't end with the EOS id.",
    },
    "Add them to the tokenizer and pack again.": {
        "<format>.chat-markers": "The chat template uses markers that aren't single tokens of the tokenizer.",
    },
    "Pack the conversations again with --overwrite. The finding shows the command.": {
        "<format>.old-chat": "Version 0.2.0 packed these conversations, with other rules for marks and the end of "
        "turns.",
    },
    "Restore it, or remove it and create it again with `penstock exclude`.": {
        "<format>.exclude-list": "The exclude list can't be read, or doesn't belong to this dataset.",
    },
    "Restore it, or open only the tokens: planes=None (--planes none).": {
        "<format>.loss-mask": "A loss mask differs in length from its tokens, or has values other than 0 and 1.",
        "<format>.plane": "A plane is missing or damaged, or its length differs from that of its tokens.",
        "<format>.planes": "The recorded planes can't be read.",
    },
    "Restore the index that lists it, or remove the plane.": {
        "<format>.plane-unlisted": "A plane exists that the side file doesn't record.",
    },
    "Rebuild the dataset with --keep-map, or remove the map.": {
        "<format>.row-map": "The row map is damaged or belongs to other data.",
    },
    "Fix the data, or skip invalid lines with --on-error skip.": {
        "<format>.line": "A line is invalid.",
        "jsonl.invalid-line": "A line isn't valid JSON.",
    },
    "Fix the sample, exclude it with `penstock exclude`, or fix the configuration that decodes it.": {
        "<format>.sample": "A sample can't be decoded.",
    },
    "Restore the file, or exclude the samples that refer to it with `penstock exclude`.": {
        "<format>.no-file": "A file referenced by a recipe or sample doesn't exist.",
        "recipe.missing-file": "A sample names a file that its auxiliary directory lacks.",
    },
    "The finding names the option that decodes the same pixels.": {
        "<format>.pixels": "Stored pixels differ from decoded ones: 16-bit images, EXIF orientation, or alpha.",
    },
    "If you trust the data, pass the option in the finding: --trust or --follow-links.": {
        "<format>.unsafe": "Reading the data would run code or leave its directory.",
        "shards.link": "A link leaves the directory.",
    },
    _BITS: {
        "flat-tokens.first_bit.clear_elsewhere": "A token that doesn't start a sequence has the start bit.",
        "flat-tokens.first_bit.set_at_starts": "The first token of a sequence lacks the start bit.",
        "flat-tokens.max_token_id.covers": "A token is larger than `max_token_id`.",
        "flat-tokens.max_token_id.integer": "`max_token_id` isn't an integer.",
        "flat-tokens.max_token_id.present": "`max_token_id` is missing.",
        "flat-tokens.max_token_id.range": "`max_token_id` is out of range.",
        "flat-tokens.seq_starts.first_zero": "`seq_starts` doesn't begin with 0.",
        "flat-tokens.seq_starts.last_equals_token_count": "`seq_starts` doesn't end with the number of tokens.",
        "flat-tokens.seq_starts.monotone": "`seq_starts` decreases, or exceeds the number of tokens.",
        "flat-tokens.seq_starts.nonempty": "`seq_starts` has no entry.",
        "flat-tokens.seq_starts.present": "`seq_starts` is missing.",
        "flat-tokens.seq_starts.read": "`seq_starts` can't be read.",
    },
    "`penstock convert` writes it in the current layout.": {
        "flat-tokens.byte-order": "The numbers are big-endian.",
        "flat-tokens.encoded_tokens.name": "The array of tokens has its old name.",
        "pbin.old-layout": "The file has an older layout.",
    },
    "Write the missing split, or open the other one as a single array.": {
        "flat-tokens.dataset.splits": "A split contradicts the others.",
    },
    "Pass the path of the group.": {"flat-tokens.group.present": "The zarr group is missing."},
    "Write the array with codecs that zarr-python supports.": {
        "flat-tokens.metadata.codec": "The metadata names a codec that can't be read.",
    },
    "Consolidate again with zarr, or remove the file.": {
        "flat-tokens.metadata.consolidated": "The consolidated metadata contradicts the arrays.",
    },
    "Check the input, and the program that wrote the data.": {
        "folder.empty": "The directory has no files.",
        "jsonl.empty": "No lines.",
        "megatron.empty": "The dataset has no documents.",
        "pbin.empty": "The file has no tokens.",
        "raw-tokens.empty": "The file has no tokens.",
        "shards.empty": "The index lists no shards.",
    },
    _MEDIA: {
        "folder.media-differs": "A media index row differs from the file's header.",
        "folder.media-index": "The media index is damaged.",
        "webdataset.media-differs": "Recorded media metadata differs from the sample.",
        "webdataset.media-index": "The media index is damaged.",
    },
    "`penstock repair --write` drops the rows, and so does `penstock prepare-media`.": {
        "folder.media-stale": "The media index has a row for a deleted file.",
    },
    "Nothing reads it. Add it to the index, remove it, or ignore it.": {
        "hf.unlisted": "`state.json` doesn't list an Arrow file, or `dataset_dict.json` a split.",
        "litdata.unlisted": "The index doesn't list a chunk.",
        "token-files.unlisted": "The index doesn't list a token file.",
    },
    "`penstock repair --write` rebuilds the index, and so does `penstock index --overwrite`.": {
        "jsonl.energon-index": "Energon's `.idx` contradicts the lines.",
        "jsonl.index": "The index isn't a list of pairs of numbers, or is truncated.",
        "jsonl.index-behind": "The file has valid lines after the last entry of its index.",
        "jsonl.index-counts-characters": "The lengths in the index count characters instead of bytes.",
        "jsonl.index-misfit": "An index entry isn't a whole line: the file changed after it was indexed.",
        "jsonl.index-outside": "An index entry points outside the file.",
        "jsonl.index-overlap": "Index entries overlap or are repeated.",
        "jsonl.left-out": "The index leaves out valid lines.",
        "jsonl.order": "The index entries aren't in the order of the file.",
        "jsonl.unsafe-index": "Unpickling the index would run code.",
    },
    "`penstock index` creates it. Without one, each host scans the file once and caches the result.": {
        "jsonl.no-index": "The index of Modalities, `.idx`, is missing, and Energon's too.",
    },
    _EOS: {
        "megatron.apart": "Documents of the index overlap, or leave gaps.",
        "megatron.documents": "The document index contradicts the sequences.",
        "megatron.dtype": "The dtype code isn't known.",
        "megatron.header": "The index is truncated, or isn't a Megatron index.",
        "megatron.index-size": "The size of the index doesn't match its counts.",
        "megatron.missing": "The `.bin` or `.idx` is missing.",
        "megatron.overlap": "Sequences overlap, with more tokens than the `.bin`.",
        "megatron.sequence": "The index points to a sequence that the `.bin` does not have.",
        "megatron.trailing": "The `.bin` continues after its last sequence.",
        "megatron.version": "The version of the index isn't supported.",
        "pbin.index": "The index isn't a list of pairs of numbers.",
        "pbin.index-hole": "Tokens belong to no document.",
        "pbin.index-outside": "A document is outside the tokens.",
        "pbin.index-overlap": "Documents overlap or are out of order.",
        "pbin.no-index": "No index begins at the position that the header states.",
        "pbin.truncated-index": "The index is truncated.",
        "pbin.unfinished": "The writer was killed: the length is still 0.",
        "pbin.unsafe-index": "Unpickling the index would run code.",
    },
    "Copy the file again. `penstock repair` keeps the complete documents.": {
        "megatron.truncated": "The `.bin` ends before its last sequence.",
        "pbin.truncated": "The file is shorter than its header states.",
    },
    "`penstock repair --write` completes the replacement, or removes the leftovers.": {
        "megatron.replaced": "Files of a replaced dataset are left over.",
    },
    "`penstock repair --write` corrects the index.": {
        "megatron.width": "The index states another token width than its lengths and the size of the `.bin`.",
        "pbin.merged-offsets": "Offsets are too low by a multiple of 12 bytes, as after Modalities' "
        "`merge_packed_data`.",
    },
    "Specify layout= (--layout).": {"pbin.ambiguous": "Several layouts fit the file."},
    "Correct the header, or write the file again.": {
        "pbin.header": "The header is truncated, or its token width is invalid.",
        "pbin.token-bytes": "The token width is wrong: lengths don't fit it, or ids look like halves or pairs of "
        "others.",
        "pbin.token-order": "The tokens have another byte order than the header.",
    },
    "Pass a one-dimensional array of ids, or a training file.": {
        "raw-tokens.array": "The `.npy` isn't a one-dimensional array of ids.",
        "raw-tokens.version": "The version of the header isn't supported.",
    },
    "Fix the recipe, or the dataset that it names.": {
        "recipe.damaged": "The recipe can't be opened.",
        "recipe.repeated": "The recipe reads the same samples under two names.",
    },
    "The finding names the option with which samples are decoded, or the error.": {
        "samples.not-decoded": "Samples weren't decoded: that runs code, several splits exist, or opening fails.",
    },
    "Download or copy the shard again. `penstock repair` can't restore missing data.": {
        "shards.hash": "A shard differs from its hash in the index.",
        "shards.missing": "A shard of the index is missing.",
        "shards.sample": "A sample can't be decoded.",
        "shards.shard": "A shard contradicts its own header.",
        "shards.size": "The size of a shard differs from the one in the index.",
    },
    _INDEX: {
        "shards.index": "`index.json` is damaged.",
        "shards.no-index": "`index.json` is missing.",
        "shards.unlisted": "No index lists this shard.",
    },
    "Nothing, if only writer options differ. Otherwise find out which dataset the shard belongs to.": {
        "shards.config": "The writer's configuration of a shard contradicts the index.",
    },
    "Finish writing or copying it, or remove its directory.": {
        "shards.missing-split": "The directory of a split has neither shards nor an index.",
        "shards.unfinished": "A writer didn't finish.",
        "token-files.unfinished": "The directory isn't finished.",
    },
    _WARNING: {
        "levanter.absent": "A field lacks files that levanter may leave out.",
        "shards.no-config": "A shard lacks its embedded configuration.",
        "shards.unknown-hash": "The hash algorithm isn't supported.",
    },
    "Copy the file again, or re-run the command that wrote it.": {
        "token-files.counts": "The number of documents or tokens in a file differs from the one in the index.",
        "token-files.digest": "The content differs from the recorded digest.",
        "token-files.file": "A file can't be read, or is of another format than the rest.",
        "token-files.missing": "A file of the index is missing.",
    },
    "`penstock repair --write` rebuilds the index from the side files of the token files.": {
        "token-files.index": "`index.json` is damaged.",
        "token-files.max-token-id": "The largest id differs from the recorded one.",
    },
    "`penstock status DIR --sweep` removes what no running job needs.": {
        "token-files.work": "The work directory of a finished run is left over.",
    },
    "Download or pack the shard again, then run `penstock prepare`.": {
        "webdataset.after-end": "A shard has data, or more zeros than padding, after its end-of-archive mark.",
        "webdataset.ignored": "Members of a shard belong to no sample, so they are ignored.",
        "webdataset.missing-shard": "A shard that `.info.json` lists is missing.",
        "webdataset.no-end": "A shard has no end-of-archive mark, and may be truncated.",
        "webdataset.only-links": "A sample consists only of links.",
        "webdataset.sample": "A sample can't be read.",
        "webdataset.shard": "A shard isn't a valid tar file.",
        "webdataset.repeated-part": "A sample has the same part twice.",
    },
    _PREPARE: {
        "webdataset.count": "The number of samples in a shard differs from the recorded one.",
        "webdataset.index": "The `.tar.idx` or `.nv-meta` index is damaged.",
        "webdataset.info": "The list of shards, `.info.json`, is missing or damaged.",
        "webdataset.members": "The list of members that are links or belong to no sample is damaged.",
        "webdataset.keys": "Stored keys contradict the shards.",
        "webdataset.links": "Parts of samples are links that the list of members lacks, so they are ignored.",
        "webdataset.missing-file": "A file of `.nv-meta` that the side file implies is missing.",
        "webdataset.sqlite": "`index.sqlite` is damaged or contradicts the shards.",
        "webdataset.unlisted-shard": "A shard isn't in `.info.json`.",
    },
    "Fix `split.yaml`, or run `penstock prepare` again.": {
        "webdataset.exclude": "An `exclude` entry matches nothing.",
        "webdataset.splits": "`split.yaml` is damaged.",
        "webdataset.unused": "A shard isn't in any split.",
    },
    "Fix the file, or open with raw.": {"webdataset.dataset": "`dataset.yaml` is damaged or not supported."},
    "Fix the data.": {"webdataset.json": "A part isn't valid JSON."},
    "Nothing, unless the samples are extracted to files.": {
        "webdataset.name": "A member name points outside the directory.",
    },
    "Read samples by index, or pack the shards again.": {
        "webdataset.repeated-key": "Two samples have the same key.",
    },
}
"""Fix → code → meaning."""

FINDINGS = {code: (what, fix) for fix, group in _BY_FIX.items() for code, what in group.items()}
"""Code → meaning, fix. `<format>` and `<array>` are placeholders of names."""


def explain(code: str) -> str:
    """Return the meaning and the fix of the code of a finding or error.

    Raises:
        click.BadParameter: the code is unknown.
    """
    format, _, rest = code.partition(".")
    array, _, last = rest.rpartition(".")
    for name in (code, f"<format>.{rest}", f"{format}.<array>.{last}" if array else ""):
        if name in FINDINGS:
            what, fix = FINDINGS[name]
            return _filled(f"{code}: {what}", f"fix: {fix}")
    errors = {error: text for error, _, _, text in codes()}
    text = errors.get(code) or errors.get(rest)
    if text is None:
        known = [*(name.replace("<format>", format) for name in FINDINGS), *errors]
        near = difflib.get_close_matches(code, known, 1, 0.7)
        hint = (
            f"Did you mean {near[0]}?" if near else "Codes are in docs/errors.md; `penstock --errors` explains errors."
        )
        raise click.BadParameter(f"unknown code {code!r}. {hint}")
    return _filled(f"{code}: {text}")


def _filled(*lines: str) -> str:
    return "\n".join(textwrap.fill(one, 100, subsequent_indent="    ", break_on_hyphens=False) for one in lines)
