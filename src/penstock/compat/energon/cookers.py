"""`@cooker`, `Cooker` and the decoder, which make samples from crude ones."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, TypeVar, overload

from penstock.codec.parts import DecodeOptions, decode_part
from penstock.compat.energon.media import AVDecoder, as_energons
from penstock.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


@overload
def cooker(fn: F, /) -> F: ...
@overload
def cooker(*, need_cache: bool = False, need_primary: bool = False) -> Callable[[F], F]: ...
def cooker(fn: Any = None, /, *, need_cache: bool = False, need_primary: bool = False) -> Any:
    """Mark a cook function that takes `cache` or `primary`.

    `cache` is the loader's cache pool, `primary` the store of the sample's own dataset.

    Examples:
        >>> from penstock.compat.energon import Cooker, cooker
        >>> @cooker(need_primary=True)
        ... def caption(sample, primary):
        ...     return primary.get(".txt")
        >>> Cooker(caption).need_primary
        True
    """
    if fn is None:
        return functools.partial(_marked, need_cache=need_cache, need_primary=need_primary)
    return _marked(fn, need_cache=need_cache, need_primary=need_primary)


def _marked(fn: Any, *, need_cache: bool, need_primary: bool) -> Any:
    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    marked.__cooker_need_cache__ = need_cache  # type: ignore[attr-defined]  # pyright: ignore
    marked.__cooker_need_primary__ = need_primary  # type: ignore[attr-defined]  # pyright: ignore
    return marked


@dataclass
class Cooker:
    """Cook function and the samples that it applies to.

    Attributes:
        cook: called as `cook(sample, **stores)`, with every auxiliary store of the dataset by its name.
        has_subflavors: pairs that the dataset's subflavors must contain; None accepts all.

    Examples:
        >>> from penstock.compat.energon import Cooker
        >>> def text(sample):
        ...     return sample["txt"]
        >>> captions = Cooker(text, has_subflavors={"kind": "captions"})
        >>> captions.is_match({"kind": "captions", "lang": "en"}), captions.is_match({"kind": "code"})
        (True, False)
    """

    cook: Callable[..., Any]
    has_subflavors: Mapping[str, Any] | None = None

    __class_getitem__ = classmethod(GenericAlias)

    @property
    def need_primary(self) -> bool:
        """Whether the function gets `primary`."""
        return getattr(self.cook, "__cooker_need_primary__", False)

    @property
    def need_cache(self) -> bool:
        """Whether the function gets `cache`."""
        return getattr(self.cook, "__cooker_need_cache__", False)

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Return whether it accepts samples of a dataset with these subflavors."""
        found = subflavors or {}
        return all(key in found and found[key] == value for key, value in (self.has_subflavors or {}).items())


class FileStoreDecoder(ABC):
    """Base class of decoders for the files of a store, by name.

    Subclasses define `decode`; `SampleDecoder` is one.

    Examples:
        >>> from penstock.compat.energon import DecodeFileStore, FileStoreDecoder, WebdatasetFileStore
        >>> class Words(FileStoreDecoder):
        ...     def decode(self, fname, raw):
        ...         return raw.decode().split()
        >>> DecodeFileStore(WebdatasetFileStore("pictures"), decoder=Words()).get("003.txt")
        ['picture', '3']
    """

    @abstractmethod
    def decode(self, fname: str, raw: bytes) -> Any:
        """Return the value of a file."""


_AV = ("AVDecoder", "torch", "pyav")


@dataclass(frozen=True, slots=True)
class SampleDecoder:
    """Decoder of parts, by extension.

    Attributes:
        image_decode: see `penstock.codec.parts.DecodeOptions.image`.
        av_decode: `"AVDecoder"`, which decodes on demand, or `"torch"`: all frames at once.
        video_decode_audio: with `"torch"`, also decode the audio of videos.
        guess_content: not supported: the name determines the kind of a part.
        trust: let pickled parts run their code.

    Examples:
        >>> from penstock.compat.energon import SampleDecoder
        >>> decoder = SampleDecoder(image_decode="rgb8")
        >>> decoder.decode("a.json", b'{"n": 1}'), decoder.decode("a.txt", b"Open the gate.")
        ({'n': 1}, 'Open the gate.')
    """

    image_decode: str = "torchrgb"
    av_decode: str = "AVDecoder"
    video_decode_audio: bool = False
    guess_content: bool = False
    trust: bool = False

    def __post_init__(self) -> None:
        DecodeOptions(self.image_decode)
        if self.av_decode not in _AV[:2] or self.guess_content:
            raise ConfigError(
                "unsupported decoding options",
                found=f"av_decode={self.av_decode!r}, guess_content={self.guess_content}",
                expected="av_decode='AVDecoder' or 'torch', guess_content=False",
            )

    @property
    def options(self) -> DecodeOptions:
        """Options of formats that decode this way."""
        own = {"trust": self.trust, "frames": self.av_decode == "torch", "sound": self.video_decode_audio}
        own |= {"refuse_late": True}
        return DecodeOptions(self.image_decode, **own, media=as_energons)

    def decode(self, fname: str, raw: bytes) -> Any:
        """Return the value of a file."""
        return decode_part(fname.rpartition("/")[2].partition(".")[2] or fname, raw, self.options)

    def finish(self, value: Any) -> Any:
        """Convert a decoded field for delivery: audio and video become all frames with `av_decode="torch"`."""
        made = as_energons(value)
        is_media = self.av_decode == "torch" and isinstance(made, AVDecoder)
        return made.get_frames(self.video_decode_audio) if is_media else made


FileStoreDecoder.register(SampleDecoder)
