"""A model on one page, and on a card.

The page (`page`) is one file of HTML without scripts, and without anything that would be fetched: pictures are drawings
inside it, whose colours follow the reader's light or dark setting (`look`). The card (`card`) is what a notebook shows.
"""
