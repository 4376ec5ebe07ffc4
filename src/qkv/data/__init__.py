"""From files to batches: text, vocabularies, token-budget batches and the embedded corpus of numbers.

`text` reads pairs of sentences (`lines` the lines below it, `report` what was found in them), `tokens` turns text
into ids and back, `pairs` keeps many encoded pairs compactly (`ragged`), `batches` plans an epoch of them, and
`numbers` is a corpus that needs no file. `labelled` reads texts with labels, `sequences` makes batches of single texts.
Nothing here knows a model.
"""
