"""The peers' own orders, bit for bit: those of Modalities, seqax and MosaicML Streaming.

Each is a walk over a whole epoch, made once and then read; the laws of `penstock.order` don't hold for them.
"""
