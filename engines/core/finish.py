"""What servers mean by the word with which they end a reply.

The word itself stays in the record. Written from the servers' own lists (2026-11): OpenAI, Azure,
Anthropic, Gemini and Vertex, Bedrock, Mistral, DeepSeek, Cohere, Zhipu, OpenRouter, vLLM, SGLang,
TGI, llama.cpp, Ollama.
"""

from typing import Literal

Finish = Literal["ended", "cut", "filtered", "broken", "unknown"]

_WORDS: dict[Finish, str] = {
    # The model ended it: by itself, at a stop text, or to call a function.
    "ended": "stop stop_sequence eos eos_token end_turn complete completed finish_complete word "
    "tool_calls tool_call tool_use function_call null none",
    # A limit of tokens, of the reply or of the context.
    "cut": "length max_tokens max_length max_len max_output max_output_tokens model_length limit "
    "model_context_window_exceeded context_length_exceeded error_limit pause_turn",
    # Held back, in part or whole.
    "filtered": "content_filter content_filtered safety recitation blocklist prohibited_content "
    "spii refusal sensitive guardrail_intervened model_armor error_toxic image_safety "
    "image_prohibited_content image_recitation language",
    # The server failed or was told to stop; another try may do better.
    "broken": "error abort aborted cancelled canceled cancel user_cancel timeout load unload "
    "insufficient_system_resource network_error failure other finish_reason_unspecified "
    "malformed_function_call malformed_response malformed_model_output malformed_tool_use "
    "unexpected_tool_call too_many_tool_calls missing_thought_signature function_call_filter "
    "function_call_failure function_call_error repetition",
}
_MEANINGS = {word: meaning for meaning, words in _WORDS.items() for word in words.split()}


def meaning_of(finish: str) -> Finish:
    """The meaning of a finish reason as it came: `MAX_TOKENS`, `content_filter: SAFETY`."""
    words = [part.strip().lower().replace("-", "_") for part in finish.split(":")]
    known = [_MEANINGS[word] for word in words if word in _MEANINGS]
    return known[0] if known else "ended" if not any(words) else "unknown"


def is_cut(finish: str) -> bool:
    """Whether the reply ends at a limit and not where the model would have ended it."""
    return meaning_of(finish) == "cut"
