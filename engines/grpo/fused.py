"""The forward pass of a small Llama-like model, made for few passes over memory.

In a model of a few million parameters products are the smaller part of a training step on a CPU;
the rest is elementwise. So q, k and v are one product and so are gate and up, norms' weights
are folded into the matrices behind them, and backward passes are written out. The adapter stays
apart from the frozen matrices, since only it learns. What is not known is left to transformers.

It is worth its length because training falls below twice TRL's speed without it: of TRL's CPU
seconds over ours a whole step has 2.1 to 2.2 with it and 1.8 without (`tests.bench.grpo`,
scenarios fixed and tiny on one busy thread; the training part alone 1.9 to 2.1 and 1.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn

from engines.policies.hf_local.fast_decoder import sign_sines

if TYPE_CHECKING:
    from torch import Tensor

    from engines.grpo.loss.collate import Rows


SMALL = 50_000_000
"""Parameters up to which the frozen matrices are kept a second time, in float32."""


@dataclass(frozen=True, slots=True)
class _JoinedMatrices:
    """Frozen matrices of modules that read the same input, one below the other."""

    modules: tuple[Any, ...]
    weight: Tensor  # (out, in), the norm before it folded in
    bias: Tensor | None
    norm: Tensor | None  # (in,) what was folded in
    down: Tensor | None = None  # (R, in) of the adapters, as they are in one forward
    up: Tensor | None = None  # (out, R)


class _Layer(NamedTuple):
    qkv: _JoinedMatrices
    out: _JoinedMatrices
    gate_up: _JoinedMatrices
    down: _JoinedMatrices


_KNOWN: WeakKeyDictionary[Any, tuple[_Layer, ...] | None] = WeakKeyDictionary()


def fused_layers(base: Any) -> tuple[_Layer, ...] | None:
    """The layers laid out, once for a model; None where transformers must compute it."""
    if base not in _KNOWN:
        _KNOWN[base] = _lay_out_layers(base) if _is_supported(base) else None
    return _KNOWN[base]


def shared_states(base: Any, layers: Sequence[_Layer], rows: Rows) -> Tensor:
    """(B, T, H) normed hidden states that predict each completion token.

    Each distinct prompt is computed once; its keys and values are repeated to its rows.
    """
    wide, long = rows.prompts.shape[1], rows.completions.shape[1]
    config = base.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    steps = torch.arange(wide + long, device=rows.prompts.device)
    cos, sin = _rotary_tables(base, steps)
    x = F.embedding(rows.prompts, base.model.embed_tokens.weight)  # (U, P, H)
    kept, blocks = [], [_Layer(*map(_adapt, layer)) for layer in layers]
    for layer, module in zip(blocks, base.model.layers, strict=True):
        q, k, v = _project_heads(layer.qkv, x, module, cos[:wide], sin[:wide])
        kept.append((k, v))
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=module.self_attn.scaling, enable_gqa=heads != kv_heads
        )
        x = _finish_layer(layer, module, x, mixed)
    ends = x[torch.arange(len(x), device=x.device), rows.prompt_lengths - 1]
    first = rows.repeat_prompts(ends)[:, None]  # (B, 1, H)
    if long > 1:
        begins = rows.prompt_lengths[rows.prompt_of]
        at = begins[:, None] + steps[None, : long - 1]  # (B, T - 1) positions
        here = steps[: wide + long - 1]
        shown = (here < begins[:, None])[:, None] | (
            (here >= wide) & (here <= wide + steps[: long - 1, None])
        )  # (B, T - 1, P + T - 1)
        bias = torch.zeros(shown.shape, dtype=x.dtype, device=x.device)
        bias = bias.masked_fill_(~shown, -torch.inf)[:, None]
        x = F.embedding(rows.completions[:, :-1], base.model.embed_tokens.weight)
        of_layers = zip(blocks, base.model.layers, kept, strict=True)
        for layer, module, (prompt_k, prompt_v) in of_layers:
            q, k, v = _project_heads(layer.qkv, x, module, cos[at], sin[at])
            mixed = F.scaled_dot_product_attention(
                q,
                _append_to_prompt(prompt_k, k, rows),
                _append_to_prompt(prompt_v, v, rows),
                attn_mask=bias,
                scale=module.self_attn.scaling,
                enable_gqa=heads != kv_heads,
            )
            x = _finish_layer(layer, module, x, mixed)
        first = torch.cat([first, x], 1)
    normed: Tensor = base.model.norm(first)
    return normed


def _append_to_prompt(prompt: Tensor, own: Tensor, rows: Rows) -> Tensor:
    """(B, heads, P + T, d) from (U, heads, P, d) and (B, heads, T, d), copying once."""
    if not rows.repeats:
        return torch.cat([prompt[rows.prompt_of], own], 2)
    each = own.reshape(len(prompt), rows.repeats, *own.shape[1:])
    wide = prompt[:, None].expand(-1, rows.repeats, -1, -1, -1)
    return torch.cat([wide, each], 3).flatten(0, 1)


def _is_supported(base: Any) -> bool:
    """Llama or Qwen2 as transformers computes them, small, in float32 on a CPU."""
    config = base.config
    weight = base.get_input_embeddings().weight
    return (
        type(base).__module__.startswith("transformers.models.")
        and config.model_type in ("llama", "qwen2")
        and config.hidden_act == "silu"
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and sum(p.numel() for p in base.parameters()) <= SMALL
        and (config.rope_parameters or {}).get("rope_type", "default") in ("default", "llama3")
        and type(base.get_input_embeddings()) is nn.Embedding
        and not any(p.requires_grad for n, p in base.named_parameters() if "lora_" not in n)
        and all(_is_plain_linear(m) for m in base.model.layers.modules() if _is_projection(m))
    )


def _is_projection(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or hasattr(module, "lora_A")


def _is_plain_linear(module: Any) -> bool:
    """An ordinary linear layer, or ordinary LoRA with one adapter around one (or inside it)."""
    if not hasattr(module, "lora_A"):
        return type(module) is nn.Linear
    return (
        type(module.base_layer) is nn.Linear
        and len(module.lora_A) == 1
        and not any(module.lora_variant.values())
        and not any(module.lora_bias.values())
        and all(
            not isinstance(drop, nn.Dropout) or not drop.training
            for drop in module.lora_dropout.values()
        )
    )


def _lay_out_layers(base: Any) -> tuple[_Layer, ...]:
    def join_modules(modules: Sequence[Any], norm: Tensor | None = None) -> _JoinedMatrices:
        plain = [getattr(module, "base_layer", module) for module in modules]
        weight = torch.cat([linear.weight.detach() for linear in plain])
        biases = [
            torch.zeros(len(linear.weight)) if linear.bias is None else linear.bias.detach()
            for linear in plain
        ]
        some = any(linear.bias is not None for linear in plain)
        folded = weight if norm is None else weight * norm
        return _JoinedMatrices(tuple(modules), folded, torch.cat(biases) if some else None, norm)

    layers = []
    for layer in base.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        before = layer.input_layernorm.weight.detach()
        between = layer.post_attention_layernorm.weight.detach()
        layers.append(
            _Layer(
                join_modules((attention.q_proj, attention.k_proj, attention.v_proj), before),
                join_modules((attention.o_proj,)),
                join_modules((mlp.gate_proj, mlp.up_proj), between),
                join_modules((mlp.down_proj,)),
            )
        )
    return tuple(layers)


def _adapt(joined: _JoinedMatrices) -> _JoinedMatrices:
    """With the adapters of its modules as they are now, as far as any is active."""
    downs, ups = [], []
    for module in joined.modules:
        if not hasattr(module, "lora_A") or module.disable_adapters:
            size = len(getattr(module, "base_layer", module).weight)
            ups.append(joined.weight.new_zeros(size, 0))
            continue
        (name,) = module.lora_A
        downs.append(module.lora_A[name].weight)
        ups.append(module.lora_B[name].weight * module.scaling[name])
    if not downs:
        return joined
    down = torch.cat(downs) if len(downs) > 1 else downs[0]
    down = down if joined.norm is None else down * joined.norm
    return replace(joined, down=down, up=torch.block_diag(*ups))  # type: ignore[no-untyped-call]


def _project(ready: _JoinedMatrices, x: Tensor, onto: Tensor | None = None) -> Tensor:
    """The linear layers on (..., in), added to `onto` where it is given."""
    flat = x.reshape(-1, x.shape[-1])
    rest = None if onto is None else onto.reshape(-1, onto.shape[-1])
    made: Tensor = _LoraLinear.apply(flat, ready.weight, ready.bias, ready.down, ready.up, rest)  # type: ignore[no-untyped-call]
    return made.view(*x.shape[:-1], -1)


def _project_heads(
    ready: _JoinedMatrices, x: Tensor, module: Any, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Turned queries and keys, and values, each (n, heads, T, d)."""
    config, eps = module.self_attn.config, module.input_layernorm.variance_epsilon
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    qkv = _project(ready, _RMSNorm.apply(x, eps))  # type: ignore[no-untyped-call]
    parts = qkv.view(*x.shape[:-1], heads + 2 * kv_heads, -1)
    turned, v = _RotaryEmbedding.apply(parts, cos.unsqueeze(-2), sin.unsqueeze(-2), kv_heads)  # type: ignore[no-untyped-call]
    q, k = turned[..., :heads, :], turned[..., heads:, :]
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _finish_layer(layer: _Layer, module: Any, x: Tensor, mixed: Tensor) -> Tensor:
    x = _project(layer.out, mixed.transpose(1, 2).flatten(-2), x)
    eps = module.post_attention_layernorm.variance_epsilon
    gate_up = _project(layer.gate_up, _RMSNorm.apply(x, eps))  # type: ignore[no-untyped-call]
    return _project(layer.down, _SwiGLU.apply(gate_up), x)  # type: ignore[no-untyped-call]


def _rotary_tables(base: Any, steps: Tensor) -> tuple[Tensor, Tensor]:
    """(positions, d) cosines, and sines that are negative in the first half."""
    like = torch.empty(0, dtype=torch.float32, device=steps.device)
    cos, sin = base.model.rotary_emb(like, steps[None])
    return sign_sines(cos[0], sin[0])


class _LoraLinear(torch.autograd.Function):
    """x·Wᵀ + b + (x·Aᵀ)·Bᵀ + rest, where W and b are frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor | None,
        up: Tensor | None,
        rest: Tensor | None,
    ) -> Tensor:
        start = bias if rest is None else rest
        made = x @ weight.T if start is None else torch.addmm(start, x, weight.T)
        if bias is not None and rest is not None:
            made.add_(bias)
        narrow = None
        if down is not None and up is not None:
            narrow = x @ down.T  # (N, R)
            made.addmm_(narrow, up.T)
        ctx.save_for_backward(x, weight, down, up, narrow)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up, narrow = ctx.saved_tensors
        rest = grad if ctx.needs_input_grad[5] else None
        into = grad @ weight if ctx.needs_input_grad[0] else None
        if down is None:
            return into, None, None, None, None, rest
        middle = grad @ up  # (N, R)
        if into is not None:
            into.addmm_(middle, down)
        return into, None, None, middle.T @ x, grad.T @ narrow, rest


class _RMSNorm(torch.autograd.Function):
    """x over its root mean square; the norm's weight is in the matrix that follows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        inverse = (square / x.shape[-1] + eps).rsqrt_()
        made: Tensor = x * inverse
        ctx.save_for_backward(made, inverse)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        made, inverse = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, made).unsqueeze(-1).div_(made.shape[-1])
        return torch.addcmul(grad, made, along, value=-1).mul_(inverse), None


class _RotaryEmbedding(torch.autograd.Function):
    """Rotary positions on queries and keys, which stand before the values."""

    @staticmethod
    def forward(
        ctx: Any, parts: Tensor, cos: Tensor, sin: Tensor, kv_heads: int
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        qk, v = parts[..., :-kv_heads, :], parts[..., -kv_heads:, :]
        return (qk * cos).addcmul_(qk.roll(qk.shape[-1] // 2, -1), sin), v.contiguous()

    @staticmethod
    def backward(ctx: Any, qk: Tensor, v: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        grad = qk.new_empty(*qk.shape[:-2], qk.shape[-2] + v.shape[-2], qk.shape[-1])
        into = (qk * cos).addcmul_(qk.roll(qk.shape[-1] // 2, -1), sin, value=-1)  # the turn back
        grad[..., : qk.shape[-2], :], grad[..., qk.shape[-2] :, :] = into, v
        return grad, None, None, None


class _SwiGLU(torch.autograd.Function):
    """silu(gate) · up, from both side by side."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        ctx.save_for_backward(gate_up)
        made: Tensor = F.silu(gate).mul_(up)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        made: Tensor = torch.empty_like(gate_up)
        for_gate, for_up = made.chunk(2, -1)
        torch.mul(grad, F.silu(gate), out=for_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=for_gate)
        return made
