"""References, as kerchunk and VirtualiZarr write them: keys of Zarr whose bytes are ranges of other files, to be read.

- what a reference is, and many of them in little memory: `base`
- their two forms: `document` (JSON) and `records` (Parquet, read in parts)
- which files they may lead to, and through which readers: `targets`
- the store: `store`
"""
