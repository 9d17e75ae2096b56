"""The peers' own orders, bit for bit: those of Modalities, seqax and MosaicML Streaming.

They are walks over a whole epoch, outside the laws of `penstock.order`: made once, then read.
"""
