"""The evaluation: experiments that drive a real engine process through the public client, and what they write.

No private calls and no short cuts: what a notebook cannot do, an experiment cannot either.
"""
