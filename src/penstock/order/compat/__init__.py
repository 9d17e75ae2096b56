"""Bit-exact orders of the peers: Modalities, seqax and MosaicML Streaming.

Each is a walk over a whole epoch, computed once and then read; they don't have the guarantees of `penstock.order`.
"""
