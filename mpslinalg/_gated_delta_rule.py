"""The gated delta rule, by chunks and token by token."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mpslinalg import _gated_delta_plan, _op, _route
from mpslinalg._check import same_device
from mpslinalg._gated_delta_plan import CHUNK_SIZES, STEP_KEYS, STEP_TOKENS, SYSTEM_SIZE, working
from mpslinalg._gated_delta_solve import DTYPES, solve_tril

regime = _gated_delta_plan.regime

_system = _gated_delta_plan.system_op
_step = _gated_delta_plan.step_op

# Under the root of a norm: flash-linear-attention's constant.
NORM_EPS = 1e-6
# Tokens that go through at once, all sequences together: for 32 heads of 128 x 128 some 600 MB.
PART_TOKENS = 4096


@_op.outside_autocast
def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Linear attention by the gated delta rule, a chunk of tokens at a time.

    For each batch and head, with S = 0 or `initial_state` before the first token,
    S <- exp(g_t) S, S <- S + k_t (beta_t (v_t - S^T k_t))^T, o_t = S^T q_t / sqrt(K).

    Same contract as `torch_chunk_gated_delta_rule` of Hugging Face transformers. Differences:
    float64 is computed in float64; `chunk_size` is 16, 32 or 64.

    Args:
        query, key: (B, T, G, K), float32, float16, bfloat16 or float64; G divides H, and each of
            their heads serves H / G heads of `value` in a row. T may be any number.
        value: (B, T, H, V).
        g: (B, T, H), logarithm of the decay, at most 0.
        beta: (B, T, H).
        chunk_size: tokens that are worked on together.
        initial_state: (B, H, K, V).
        output_final_state: also return the state after the last token.
        use_qk_l2norm_in_kernel: divide each query and key by sqrt(its square sum + 1e-6).

    Returns:
        The output (B, T, H, V) in the dtype of `query`, and the state (B, H, K, V) in float32
        (float64 if an input is), or None. Halves are computed in float32.

    Raises:
        RuntimeError: shapes, dtypes, head counts or chunk sizes that do not fit; says what was
            given and what is accepted.

    All inputs have derivatives. Chunks are independent but for the state, which passes through
    them by one product each: S <- (exp(g) I - K^T W) S + K^T U.

    Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2025); Yang et al., "Parallelizing
    Linear Transformers with the Delta Rule over Sequence Length" (2024);
    docs/algorithms/gated_delta.md.
    """
    name = "chunk_gated_delta_rule"
    _check_rule(name, query, key, value, g, beta, initial_state)
    if chunk_size not in CHUNK_SIZES:
        raise RuntimeError(f"{name}: chunk_size must be one of {CHUNK_SIZES}, but got {chunk_size}")
    # Memory for the states before all chunks grows with their number: a long text goes in parts.
    batch, length = g.shape[:2]
    part = max(PART_TOKENS // (max(batch, 1) * chunk_size), 1) * chunk_size
    given, outputs = (query, key, value, g, beta), []
    state = _state(*given, initial_state)
    for first in range(0, length, part):
        tokens = (_chunked(x[:, first : first + part], chunk_size) for x in given)
        chunks, state = _chunk_rule(state, *_prepared(use_qk_l2norm_in_kernel, *tokens))
        outputs.append(chunks.permute(1, 0, 3, 2, 4).flatten(1, 2).to(query.dtype))
    output = torch.cat(outputs, 1) if outputs else torch.zeros_like(value).to(query.dtype)
    return output[:, :length].contiguous(), state if output_final_state else None


def _chunk_rule(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Output (C, B, H, L, V) and last state for chunks (C, B, H, L, *) and a state (B, H, K, V)."""
    total, beta = g.cumsum(-1), beta.unsqueeze(-1)
    distance = total.unsqueeze(-1) - total.unsqueeze(-2)
    above = torch.ones(distance.shape[-2:], dtype=torch.bool, device=g.device).triu(1)
    decay = distance.masked_fill(above, -torch.inf).exp()
    from_start = total.exp().unsqueeze(-1)
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1)

    if _fused(k, beta, g):
        X = _system(k, beta.squeeze(-1), total)
    else:
        X = _inverse((k * beta) @ k.mT * decay)
    W = X @ (k * (beta * from_start))
    U = X @ (v * beta)

    # From one chunk to the next: S <- step S + written, both in one product.
    k_end = (k * to_end).mT
    identity = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    step = identity * from_start[..., -1:, :] - k_end @ W
    written = k_end @ U
    states = [state.flatten(0, 1)]
    for A, B in zip(step.flatten(1, 2).unbind(), written.flatten(1, 2).unbind(), strict=True):
        states.append(torch.baddbmm(B, A, states[-1]))
    before = torch.stack(states[:-1]).view(len(k), *state.shape)
    new_values = U - W @ before
    output = (q * from_start) @ before + ((q @ k.mT) * decay) @ new_values
    return output, states[-1].view(state.shape)


def _fused(k: Tensor, beta: Tensor, g: Tensor) -> bool:
    """Whether one kernel builds and inverts the systems: it has no derivative."""
    return (
        k.shape[-2] == SYSTEM_SIZE
        and not _op.tracked(k, beta, g)
        and _route.kernels("chunk_gated_delta_rule", k)
    )


def _inverse(A: Tensor) -> Tensor:
    """(I + A)^-1 of matrices (*, L, L), of which only what lies below the diagonal counts."""
    size = A.shape[-1]
    return solve_tril(A.reshape(1, A.numel() // size, 1, size), output_dtype=A.dtype).view(A.shape)


def _chunked(x: Tensor, size: int) -> Tensor:
    """(B, T, H, *) as (C, B, H, size, *). Zeros after the last token leave the state as it is."""
    batch, length, heads, *rest = x.shape
    count = -(-length // size)
    if length % size:
        x = F.pad(x, (*(0, 0) * len(rest), 0, 0, 0, count * size - length))
    x = x.reshape(batch, count, size, heads, *rest).transpose(0, 1).transpose(2, 3)
    return x.contiguous()


@_op.outside_autocast
def recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Linear attention by the gated delta rule, token by token: the step for decoding.

    Same contract as `torch_recurrent_gated_delta_rule` of Hugging Face transformers. Differences:
    float64 is computed in float64.

    Args:
        query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel: see
            `chunk_gated_delta_rule`.

    Returns:
        The output and the state, as `chunk_gated_delta_rule`.

    Raises:
        RuntimeError: as `chunk_gated_delta_rule`.

    Where no derivative is asked for and K <= 256 it is one launch. For more than a few tokens, and
    for the formula and its source, see `chunk_gated_delta_rule`.
    """
    given = (query, key, value, g, beta, initial_state)
    _check_rule("recurrent_gated_delta_rule", *given)
    tensors = (x for x in given if x is not None)
    if (
        _route.kernels("recurrent_gated_delta_rule", query)
        and key.shape[-1] <= STEP_KEYS
        and not _op.tracked(*tensors)
    ):
        output, state = _by_steps(*given, normalized=use_qk_l2norm_in_kernel)
    else:
        tokens = (x.transpose(1, 2) for x in given[:5])
        output, state = _by_tokens(_state(*given), *_prepared(use_qk_l2norm_in_kernel, *tokens))
    return output.to(query.dtype), state if output_final_state else None


def _by_steps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial: Tensor | None,
    normalized: bool,
) -> tuple[Tensor, Tensor]:
    """The rule by a kernel, which has no derivative."""
    dtype = working(*(x.dtype for x in (query, key, value, g, beta)))
    same = query.dtype == key.dtype == value.dtype == beta.dtype and dtype == torch.float32
    stored = query.dtype if same else dtype
    state, outputs = _state(query, key, value, g, beta, initial), []
    q, k, v, beta = (x.to(stored) for x in (query, key, value, beta))
    g = g.to(dtype)
    if g.shape[1] <= STEP_TOKENS:
        output, state = _step(q, k, v, g, beta, state, normalized)
        return output, state
    for first in range(0, g.shape[1], STEP_TOKENS):
        part = (x[:, first : first + STEP_TOKENS] for x in (q, k, v, g, beta))
        output, state = _step(*part, state, normalized)
        outputs.append(output)
    return torch.cat(outputs, 1), state


def _by_tokens(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Output (B, T, H, V) and last state for tokens (B, H, T, *)."""
    decay = g.exp()[..., None, None]
    outputs = []
    for t in range(g.shape[2]):
        column = k[:, :, t].unsqueeze(-1)
        state = state * decay[:, :, t]
        new = beta[:, :, t, None] * (v[:, :, t] - (column.mT @ state).squeeze(-2))
        state = state + column * new.unsqueeze(-2)
        outputs.append((q[:, :, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(v.transpose(1, 2)), state


def _prepared(
    normalized: bool, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, ...]:
    """What is computed with, from (*, G, T, K) and (*, H, T, *): of one dtype, all of H heads."""
    dtype = working(*(x.dtype for x in (query, key, value, g, beta)))
    q, k, v, g, beta = (x.to(dtype) for x in (query, key, value, g, beta))
    scale = k.shape[-1] ** -0.5
    if normalized:
        q = q * (_inverse_norm(q) * scale)
        k = k * _inverse_norm(k)
    else:
        q = q * scale
    if k.shape[-3] != v.shape[-3]:
        q, k = (x.repeat_interleave(v.shape[-3] // k.shape[-3], -3) for x in (q, k))
    return q, k, v, g, beta


def _inverse_norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (norm.square() + NORM_EPS).rsqrt()


def _state(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, initial: Tensor | None
) -> Tensor:
    """The state before the first token."""
    dtype = working(*(x.dtype for x in (query, key, value, g, beta)))
    if initial is not None:
        return initial.to(dtype)
    shape = (key.shape[0], value.shape[2], key.shape[-1], value.shape[-1])
    return torch.zeros(shape, dtype=dtype, device=key.device)


def _check_rule(
    name: str, query: Any, key: Any, value: Any, g: Any, beta: Any, initial_state: Any
) -> None:
    given = {"query": query, "key": key, "value": value, "g": g, "beta": beta}
    if initial_state is not None:
        given["initial_state"] = initial_state
    for argument, x in given.items():
        dims = 3 if argument in ("g", "beta") else 4
        if not isinstance(x, Tensor) or x.dim() != dims or x.dtype not in DTYPES:
            found = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise RuntimeError(
                f"{name}: {argument} must be a tensor of {dims} dimensions and of float32, "
                f"float16, bfloat16 or float64, but got {found}"
            )
    same_device(name, **given)
    batch, length, groups, width = key.shape
    heads, columns = value.shape[2:]
    expected = {
        "query": (batch, length, groups, width),
        "value": (batch, length, heads, columns),
        "g": (batch, length, heads),
        "beta": (batch, length, heads),
        "initial_state": (batch, heads, width, columns),
    }
    for argument, shape in expected.items():
        if argument in given and given[argument].shape != shape:
            raise RuntimeError(
                f"{name}: {argument} must be {list(shape)} for key {list(key.shape)} [B, T, G, K] "
                f"and value {list(value.shape)} [B, T, H, V], but got "
                f"{list(given[argument].shape)}"
            )
    if width == 0:
        raise RuntimeError(
            f"{name}: keys must have at least one entry, but key is {list(key.shape)}"
        )
    if groups == 0 or heads % groups != 0:
        raise RuntimeError(
            f"{name}: the heads of value must be a multiple of those of key, but got {heads} and "
            f"{groups}"
        )
