

def test_a_try_of_several_turns_is_counted_with_what_its_later_prompts_repeat() -> None:
    single = estimate(facts())
    acting = estimate(replace(facts(), turns=Range(2.0, 4.0)))
    one, more = single.stages[0], acting.stages[0]
    assert (more.calls.likely, more.calls.most) == (2 * one.calls.likely, 4 * one.calls.most)
    assert more.prompt_tokens.likely > 2 * one.prompt_tokens.likely
    assert more.reply_tokens.likely == 2 * one.reply_tokens.likely
