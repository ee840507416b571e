"""Answers in OpenAI's forms for engines that make text: what vLLM's own server does for vLLM.

fields    the fields of a body: types, ranges, JSON schemas; and what a model would read of it
reading   what a body asks for
forms     the bytes of an answer
answers   a call becomes requests of the engine, and its text an answer
"""
