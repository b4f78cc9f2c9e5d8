"""Gated DeltaNet: the chunk solve, the rule by chunks and by tokens, and transformers on it."""

from mpslinalg._gated_delta_patch import patch_transformers as patch_transformers
from mpslinalg._gated_delta_rule import chunk_gated_delta_rule as chunk_gated_delta_rule
from mpslinalg._gated_delta_rule import recurrent_gated_delta_rule as recurrent_gated_delta_rule
from mpslinalg._gated_delta_solve import solve_tril as solve_tril
