"""The gated delta rule, by chunks and token by token."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mpslinalg import _op, _route
from mpslinalg._check import same_device
from mpslinalg._gated_delta_plan import CHUNK_SIZES, STEP_KEYS, STEP_TOKENS, SYSTEM_SIZE, working
from mpslinalg._gated_delta_solve import DTYPES, solve_tril

_system = torch.ops.mpslinalg.gated_delta_system.default
_step = torch.ops.mpslinalg.gated_delta_step.default

# Under the root of a norm: flash-linear-attention's constant.
NORM_EPS = 1e-6


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
    batch, length, heads = g.shape
    q, k, v, g_, b, state = _working(
        query, key, value, g, beta, initial_state, use_qk_l2norm_in_kernel
    )
    # A dummy token leaves the state as it is: no decay, nothing written.
    q, k, v = (_chunked(x, chunk_size) for x in (q, k, v))
    g_, b = (_chunked(x.unsqueeze(-1), chunk_size) for x in (g_, b))
    if length == 0:
        output, last = v.new_zeros(batch, 0, heads, v.shape[-1]), state
    else:
        output, last = _chunk_rule(q, k, v, g_.squeeze(-1), b, state)
        output = output.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
    output = output.to(query.dtype).contiguous()
    return output, last if output_final_state else None


def _chunk_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Output (C, B, H, L, V) and last state for chunks (C, B, H, L, *) and a state (B, H, K, V)."""
    total = g.cumsum(-1)
    distance = total.unsqueeze(-1) - total.unsqueeze(-2)
    above = torch.ones_like(distance[0, 0, 0], dtype=torch.bool).triu(1)
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
    step = _identity(k) * from_start[..., -1:, :] - k_end @ W
    written = k_end @ U
    states = [state.flatten(0, 1)]
    for A, B in zip(step.flatten(1, 2).unbind(), written.flatten(1, 2).unbind(), strict=True):
        states.append(torch.baddbmm(B, A, states[-1]))
    before = torch.stack(states[:-1]).view(-1, *state.shape)
    new_values = U - W @ before
    output = (q * from_start) @ before + ((q @ k.mT) * decay) @ new_values
    return output, states[-1].view(state.shape)


def _fused(k: Tensor, beta: Tensor, g: Tensor) -> bool:
    """Whether one kernel builds and inverts the systems: it has no derivative."""
    return (
        k.shape[-2] == SYSTEM_SIZE
        and not _op.tracked(k, beta, g)
        and _route.kernels("gated_delta_system", k)
    )


def _inverse(A: Tensor) -> Tensor:
    """(I + A)^-1 of matrices (*, L, L), of which only what lies below the diagonal counts."""
    size = A.shape[-1]
    return solve_tril(A.reshape(1, -1, 1, size), output_dtype=A.dtype).view(A.shape)


def _identity(k: Tensor) -> Tensor:
    return torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)


def _chunked(x: Tensor, size: int) -> Tensor:
    """(B, T, H, D) as (C, B, H, size, D), with zeros after the last token."""
    padding = -x.shape[1] % size
    x = F.pad(x, (0, 0, 0, 0, 0, padding)) if padding else x.contiguous()
    batch, length, heads, width = x.shape
    return x.view(batch, length // size, size, heads, width).permute(1, 0, 3, 2, 4).contiguous()


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
    float64 is computed in float64. Arguments, returns and errors are those of
    `chunk_gated_delta_rule`, which is the faster for more than a few tokens. Where no derivative
    is asked for and K <= 256 it is one launch.
    """
    given = (query, key, value, g, beta, initial_state)
    _check_rule("recurrent_gated_delta_rule", *given)
    tensors = (x for x in given if x is not None)
    if (
        _route.kernels("gated_delta_step", query)
        and key.shape[-1] <= STEP_KEYS
        and not _op.tracked(*tensors)
    ):
        output, state = _by_steps(*given, normalized=use_qk_l2norm_in_kernel)
    else:
        output, state = _by_tokens(*_working(*given, use_qk_l2norm_in_kernel))
    return output.to(query.dtype), state if output_final_state else None


def _by_steps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None,
    normalized: bool,
) -> tuple[Tensor, Tensor]:
    """The rule by a kernel, which has no derivative."""
    dtype = working(*(x.dtype for x in (query, key, value, g, beta)))
    same = query.dtype == key.dtype == value.dtype and dtype == torch.float32
    stored = query.dtype if same else dtype
    q, k, v = (x.to(stored) for x in (query, key, value))
    g, beta = g.to(dtype), beta.to(dtype)
    if state is None:
        state = g.new_zeros(g.shape[0], g.shape[2], key.shape[-1], value.shape[-1])
    state, outputs = state.to(dtype), []
    for first in range(0, max(g.shape[1], 1), STEP_TOKENS):
        part = (x[:, first : first + STEP_TOKENS] for x in (q, k, v, g, beta))
        output, state = _step(*part, state, normalized)
        outputs.append(output)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1), state


def _by_tokens(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    decay = g.exp()[..., None, None]
    outputs = []
    for t in range(g.shape[1]):
        column = k[:, t].unsqueeze(-1)
        state = state * decay[:, t]
        new = beta[:, t].unsqueeze(-1) * (v[:, t] - (column.mT @ state).squeeze(-2))
        state = state + column * new.unsqueeze(-2)
        outputs.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(v), state


def _working(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    normalized: bool,
) -> tuple[Tensor, ...]:
    """What is computed with: one dtype, a query and a key for every head, scaled, and a state."""
    heads, width = value.shape[2:]
    given = (query, key, value, g, beta)
    dtype = working(*(x.dtype for x in given))
    q, k, v, g, beta = (x.to(dtype) for x in given)
    if normalized:
        q, k = (x * (x.square().sum(-1, keepdim=True) + NORM_EPS).rsqrt() for x in (q, k))
    if k.shape[2] != heads:
        q, k = (x.repeat_interleave(heads // k.shape[2], 2) for x in (q, k))
    q = q * k.shape[-1] ** -0.5
    if initial_state is None:
        state = k.new_zeros(k.shape[0], heads, k.shape[-1], width)
    else:
        state = initial_state.to(dtype)
    return q, k, v, g, beta, state


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
    if groups == 0 or heads % groups != 0:
        raise RuntimeError(
            f"{name}: the heads of value must be a multiple of those of key, but got {heads} and "
            f"{groups}"
        )
