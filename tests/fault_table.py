"""The faults that `tests.faults` puts in: what each would be, where, and who should notice.

A flat table of values, by package. Each fault is one that a refactoring could really bring in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Its name says what would go wrong for whoever uses the program."""

    name: str
    file: str
    text: str  # stands exactly once in the file; short, so that it outlives changes around it
    becomes: str
    tests: tuple[str, ...]  # files, or single tests where their file takes long


FAULTS = (
    Fault(
        "two equal lessons under swapped ids are two rewrites",
        "engines/core/text/similarity.py",
        "    by_key(lambda entry: entry[1])\n",
        "",
        ("tests/engines/core/text/test_pairing.py",),
    ),
    Fault(
        "a result that both have hides the step at which a loser went wrong",
        "studio/review/divergence.py",
        "                _drop_detours(step, ours[match], theirs, apart, since)",
        "                apart.clear()",
        ("tests/studio/review/test_divergence.py",),
    ),
    Fault(
        "the loser's parting step stands beside the winner's first",
        "studio/review/divergence.py",
        "_find_counterpart(theirs[i], ours, passed + 1, asked)",
        "_find_counterpart(theirs[i], ours, 0, asked)",
        ("tests/studio/review/test_divergence.py",),
    ),
    Fault(
        "a deleted experience's id is used again",
        "engines/core/library.py",
        "is_new = draft.next_number != self.next_number or any(",
        "is_new = any(",
        (
            "tests/engines/core/test_library.py::test_an_id_used_up_within_one_commit_does_not_come_back",
        ),
    ),
    Fault(
        "a streamed secret goes out but for its last letter",
        "engines/secrets/mask.py",
        "tail = text[1 - len(value) :]",
        "tail = text[2 - len(value) :]",
        ("tests/engines/secrets/test_mask.py::test_a_key_spread_over_pieces_never_shows",),
    ),
    Fault(
        "an undo leaves standing what rested on it",
        "engines/pipeline/gate/gate.py",
        "undone = (operation_id, *await self._take_back_misfits(operation_id))",
        "undone = (operation_id,)",
        (
            "tests/engines/pipeline/gate/test_gate.py::test_an_undo_asks_again_for_approvals_that_rested_on_it",
        ),
    ),
    Fault(
        "a pinned experience is changed by a modify",
        "engines/core/library.py",
        "                if before.pinned:\n                    return _pinned_reason(before)\n",
        "",
        (
            "tests/engines/core/test_library.py::test_a_pin_is_a_version_of_its_own_and_holds_within_one_draft",
        ),
    ),
    Fault(
        "a batch is written as single records",
        "engines/pipeline/gate/gate.py",
        "            return await self._record_decisions(decisions)\n",
        "            return [(await self._record_decisions((one,)))[0] for one in decisions]\n",
        (
            "tests/engines/pipeline/gate/test_gate.py::test_a_batch_cut_anywhere_stands_whole_or_not_at_all",
        ),
    ),
    Fault(
        "the commit does not wait for an undo under way",
        "engines/pipeline/gate/gate.py",
        "            async with self._lock:\n                if step not in",
        "            if True:\n                if step not in",
        (
            "tests/engines/pipeline/gate/test_gate.py::test_an_undo_under_way_is_not_overtaken_by_the_commit",
        ),
    ),
    Fault(
        "no checkpoint is saved at the end of a step",
        "engines/pipeline/step.py",
        "    await practice.save_if_due(step)\n",
        "",
        (
            "tests/engines/pipeline/test_replay_training.py::test_steps_after_the_checkpoint_are_computed_again_and_said_so",
        ),
    ),
    Fault(
        "what a cut evaluation had paid for counts as taken over",
        "engines/pipeline/evaluation/evaluate.py",
        "reused = not one.payer or score.payer != one.payer",
        "reused = True",
        (
            "tests/engines/pipeline/evaluation/test_evaluate.py::test_a_run_cut_in_an_evaluation_adds_up_to_what_an_uncut_one_paid",
        ),
    ),
    Fault(
        "each further try of a call is charged with the tries before it",
        "engines/pipeline/budget.py",
        "settle(paid - self._charged)",
        "settle(paid)",
        (
            "tests/engines/pipeline/test_budget.py::test_a_lone_call_is_tried_again_as_often_as_its_budget_allows",
        ),
    ),
    Fault(
        "failures end a run although what is under way may yet work",
        "engines/pipeline/control.py",
        "streak >= most and streak > others",
        "streak >= most",
        ("tests/engines/pipeline/test_outage.py",),
    ),
    Fault(
        "a step is computed again for as long a run as is planned now",
        "engines/pipeline/replay_training.py",
        "engine.plan(plans[event.step])",
        "engine.plan(plans[last])",
        (
            "tests/engines/pipeline/test_replay_training.py::test_steps_of_several_plans_are_each_computed_again_by_their_own",
        ),
    ),
    Fault(
        "pass@k leaves out questions with exactly k tries",
        "engines/pipeline/evaluation/statistics.py",
        "counts if n >= k]",
        "counts if n > k]",
        (
            "tests/engines/pipeline/evaluation/test_metrics.py::test_a_pass_curve_tells_on_how_many_questions_each_point_rests",
        ),
    ),
    Fault(
        "the verifier's words reach a reflector that must not know the truth",
        "engines/training_free/reading.py",
        "_critique_lines(verdict, group.problem) if rewards_known else (),",
        "_critique_lines(verdict, group.problem),",
        ("tests/engines/training_free/test_training_free.py",),
    ),
    Fault(
        "advantages are divided by the deviation of the whole, not of the sample",
        "engines/grpo/loss/loss.py",
        "(count - 1).clamp(min=1)",
        "count.clamp(min=1)",
        ("tests/engines/grpo/loss/test_advantages.py",),
    ),
    Fault(
        "ratios are clipped above at the bound for below",
        "engines/grpo/loss/loss.py",
        "clamp(1 - clip_low, 1 + clip_high)",
        "clamp(1 - clip_low, 1 + clip_low)",
        ("tests/engines/grpo/loss/test_loss.py",),
    ),
    Fault(
        "the last turn of a try is discounted too",
        "engines/grpo/loss/collate.py",
        "(len(turns) - 1 - number)",
        "(len(turns) - number)",
        ("tests/engines/grpo/loss/test_collate.py",),
    ),
    Fault(
        "gradients are cleared between the minibatches of one optimiser step",
        "engines/grpo/engine/update.py",
        "            for minibatch in window:\n                work",
        "            for minibatch in window:\n"
        "                self._optimiser.zero_grad()\n"
        "                work",
        ("tests/engines/grpo/engine/test_grpo.py::test_accumulated_minibatches_equal_one_batch",),
    ),
    Fault(
        "a checkpoint forgets the weights that the collapse guard may go back to",
        "engines/grpo/checkpoint/contents.py",
        "guard=_load_tensors(folder / GUARD) if (folder / GUARD).exists() else {},",
        "guard={},",
        ("tests/engines/grpo/checkpoint/test_checkpoint.py::test_a_state_comes_back_bit_for_bit",),
    ),
    Fault(
        "a collapse needs one bad batch more than the patience that is set",
        "engines/grpo/engine/collapse.py",
        "if len(recent) < patience:",
        "if len(recent) <= patience:",
        (
            "tests/engines/grpo/engine/test_collapse.py::test_drop_and_patience_are_those_of_the_settings",
        ),
    ),
    Fault(
        "some groups are computed by no process of a training run",
        "engines/grpo/ranks/ranks.py",
        "items[self.rank if rank is None else rank :: self.size]",
        "items[self.rank + 1 if rank is None else rank + 1 :: self.size]",
        ("tests/engines/grpo/ranks/test_ranks.py",),
    ),
    Fault(
        "of two tool calls with one index the second is lost",
        "engines/policies/chat/streamed_reply.py",
        "slot = max(self._calls) + 1",
        "slot = max(self._calls)",
        ("tests/engines/policies/chat/test_client.py",),
    ),
    Fault(
        "a reply that is streamed again is shown again from its beginning",
        "engines/policies/chat/client.py",
        "new = text[max(0, self._shown - self._here) :]",
        "new = text",
        (
            "tests/engines/policies/chat/test_client.py::test_a_cut_stream_is_asked_again_and_shown_once",
        ),
    ),
    Fault(
        "a slot granted to a call that was cancelled is lost",
        "engines/policies/limits.py",
        "                self._give_back()\n            raise\n\n    def _give_back",
        "                pass\n            raise\n\n    def _give_back",
        ("tests/engines/policies/limits/test_throttle.py",),
    ),
    Fault(
        "each refusal of one round halves the limit again",
        "engines/policies/limits.py",
        "        if began < self._cuts:\n            return\n",
        "",
        ("tests/engines/policies/limits/test_congestion.py",),
    ),
    Fault(
        "rehearsal takes the larger number from the smaller one",
        "engines/policies/rehearsal/families.py",
        "_subtraction_task(int(found[2]), int(found[1]))",
        "_subtraction_task(int(found[1]), int(found[2]))",
        ("tests/engines/policies/rehearsal/test_rehearsal.py",),
    ),
    Fault(
        "scores of a cut distribution are given out for training",
        "engines/policies/hf_local/policy.py",
        "token_ids=tuple(drawn.token_ids) if exact else (),",
        "token_ids=tuple(drawn.token_ids),",
        (
            "tests/engines/policies/hf_local/test_hf_local.py::test_scores_of_a_cut_distribution_are_not_given_out",
        ),
    ),
    Fault(
        "an answer whose check broke off is wrong instead of unjudged",
        "engines/verifiers/stated_answer.py",
        "    return Verdict(None, error=text)",
        "    return Verdict(0.0, error=text)",
        (
            "tests/engines/verifiers/math/test_math_answer.py::test_a_bomb_costs_its_own_verdict_only",
        ),
    ),
    Fault(
        "expected words are compared as they are written",
        "engines/verifiers/text.py",
        "_contains_words(words, normalise_text(gold))",
        "_contains_words(words, gold)",
        ("tests/engines/verifiers/test_text.py",),
    ),
    Fault(
        "of verdicts that contradict each other the last counts",
        "engines/verifiers/judge.py",
        "if any(reader(value) != reward for value in said_too):",
        "if False:",
        ("tests/engines/verifiers/test_judge.py",),
    ),
    Fault(
        "the time that a verifier's own model takes counts as its own",
        "engines/process/pool.py",
        "        call.stop_clock()\n\n        async def answer",
        "        async def answer",
        (
            "tests/engines/verifiers/foreign/test_foreign.py::test_waiting_for_the_judge_does_not_count",
        ),
    ),
    Fault(
        "an answer is given up where its checking process was killed from outside",
        "engines/process/pool.py",
        "            if call.alone:",
        "            if True:",
        ("tests/engines/verifiers/foreign/test_foreign_process.py",),
    ),
    Fault(
        "a shaped reward may leave the range from 0 to 1",
        "engines/verifiers/shaping.py",
        "reward = min(1.0, max(0.0, shaped.reward))",
        "reward = shaped.reward",
        ("tests/engines/verifiers/test_shaping.py::test_length_costs_what_the_formula_says",),
    ),
    Fault(
        "lines of a journal are not chained to the one before",
        "engines/record/journal.py",
        "raw, self._chain = lines.encode(",
        "raw, _ = lines.encode(",
        ("tests/engines/record/test_journal.py",),
    ),
    Fault(
        "every turn is recorded with all the messages before it",
        "engines/record/ledger.py",
        "if after else 0",
        "if not after else 0",
        ("tests/engines/record/test_ledger.py",),
    ),
    Fault(
        "the commit of a removed run of the same name is taken for ours",
        "engines/record/libraries.py",
        "if commit.version > base and (",
        "if (",
        ("tests/engines/record/test_libraries.py",),
    ),
    Fault(
        "a folder in which a process writes is taken to be free",
        "engines/record/lock.py",
        "    except Timeout:\n        return True",
        "    except Timeout:\n        return False",
        (
            "tests/studio/workspace/test_doctor.py::test_nothing_is_repaired_where_a_process_writes_and_all_is_elsewhere",
        ),
    ),
    Fault(
        "a second score of one try takes the place of the first",
        "engines/record/scores.py",
        "        if known is not None:\n            return known\n",
        "",
        ("tests/engines/record/test_scores.py",),
    ),
    Fault(
        "what a call that failed may have cost is forgotten with its rollout",
        "engines/rollouts/manager.py",
        "attempt = _failed_attempt(failure, recorded.usage, began)",
        "attempt = _failed_attempt(failure, NO_USAGE, began)",
        (
            "tests/engines/rollouts/test_rollouts.py::test_a_try_whose_replies_grow_too_long_together_fails_and_is_paid",
        ),
    ),
    Fault(
        "a null answer hides another field that has the answer",
        "engines/data/fields.py",
        "        if get_field(row, name) is not None:\n            return name\n",
        "        if name in row:\n            return name\n",
        ("tests/engines/data/test_dataset.py",),
    ),
    Fault(
        "the last step of an epoch belongs to it, the others to the epoch before",
        "engines/data/sampler.py",
        "return -(-step // self.steps_per_epoch)",
        "return step // self.steps_per_epoch",
        ("tests/engines/data/test_sampler.py",),
    ),
    Fault(
        "a split of which a shard is missing is read as if it were whole",
        "engines/data/folder.py",
        "if numbers != list(range(of)):",
        "if not numbers:",
        ("tests/engines/data/test_data_formats.py",),
    ),
    Fault(
        "the calculator answers once more after the last turn",
        "engines/agents/calculator.py",
        "if expression is None or turn == self.max_turns:",
        "if expression is None:",
        ("tests/engines/agents/test_calculator_agent.py",),
    ),
    Fault(
        "an override of the whole verifier is merged into the file's",
        "studio/config/compose.py",
        "        if key[0] in REPLACED and len(key) == 1:\n",
        "        if key[0] not in SHORTHAND:\n",
        (
            "tests/studio/config/test_verifier_forms.py::test_an_override_of_the_whole_verifier_leaves_nothing_of_the_file_s",
        ),
    ),
    Fault(
        "a resumed run forgets who reviews it",
        "studio/run/new_or_resume.py",
        "reviewer=review or state.reviewer)",
        "reviewer=new.reviewer)",
        (
            "tests/studio/run/test_headless.py::test_operations_left_open_are_exit_3_and_the_reviewer_stays_over_a_resume",
        ),
    ),
    Fault(
        "a stop after the step under way ends with the code of an interruption",
        "studio/exit_codes.py",
        'if state.ending == "stopped" and state.reason != "after this step":',
        'if state.ending == "stopped":',
        ("tests/studio/report/test_summary.py",),
    ),
    Fault(
        "a traceback is printed with the key that it quotes",
        "studio/secrets/output.py",
        'escape_unsafe(mask_text("".join(',
        'escape_unsafe(str("".join(',
        ("tests/studio/secrets/test_secrets.py::test_a_traceback_of_a_bug_holds_no_key",),
    ),
    Fault(
        "JSON on stdout steers the terminal",
        "studio/render/json.py",
        "escape_unsafe_json(current_mask().line(dumps(json_data(value))).decode())",
        "current_mask().line(dumps(json_data(value))).decode()",
        ("tests/studio/secrets/test_sanitized_output.py",),
    ),
    Fault(
        "a request that is sent again is carried out again",
        "studio/session/requests.py",
        "    return request.answer_again(done, state)",
        "    return request.answer_again([], state)",
        (
            "tests/studio/session/test_live.py::test_the_gate_s_own_refusal_is_known_again_as_the_answer",
        ),
    ),
    Fault(
        "the events of a request do not know it",
        "engines/pipeline/recorder.py",
        "self._journal.append(event, _REQUEST.get())",
        "self._journal.append(event)",
        (
            "tests/studio/session/test_live.py::test_what_was_done_before_its_answer_was_cut_is_answered_and_not_done_again",
        ),
    ),
    Fault(
        "a commit stays held when the screen that decides is gone",
        "studio/session/server.py",
        "        if client is self._controller:\n            self._set_controller(None)",
        "        if client is self._controller:\n            self._controller = None",
        ("tests/studio/session/test_live.py::test_a_screen_that_leaves_lets_the_commit_go",),
    ),
    Fault(
        "an editor's wording is lost where the edit was not decided",
        "studio/review/line_mode.py",
        "            self._wordings[operation.id] = decision.text\n",
        "",
        ("tests/studio/review/test_line_mode.py",),
    ),
    Fault(
        "line mode decides although a screen does",
        "studio/session/requests.py",
        "    decides = True  # who asks is about to",
        "    decides = False",
        (
            "tests/studio/session/test_link.py::test_a_review_beside_a_screen_that_drives_ends_or_waits",
        ),
    ),
    Fault(
        "a key remapped onto one that is heard everywhere is no clash",
        "studio/tui/keymap.py",
        'together or "global" in (key.scope, other.scope)',
        "together",
        ("tests/studio/tui/test_keymap.py",),
    ),
    Fault(
        "what is being reworded is approved with all that is safe",
        "studio/tui/pages/review/decisions.py",
        "if item.is_safe and not self.has_draft(item.id)",
        "if item.is_safe",
        (
            "tests/studio/tui/pages/test_review_steps.py::test_what_is_being_reworded_is_not_approved_with_all_that_is_safe",
        ),
    ),
    Fault(
        "tries without a reward count in the score of a group",
        "studio/tui/pages/live/view.py",
        'one.state in ("won", "lost") for one',
        'one.state != "queued" for one',
        ("tests/studio/tui/pages/test_live_view.py",),
    ),
    Fault(
        "a cell that changes its colour alone is not drawn",
        "studio/tui/terminal/frames.py",
        "if chars[begin:end] != new or codes[begin:end] != [code] * (end - begin):",
        "if chars[begin:end] != new:",
        ("tests/studio/tui/terminal/test_frames.py",),
    ),
    Fault(
        "rows of the canvas are drawn as they were before their text came",
        "studio/tui/drawing/canvas.py",
        "                self._strips.pop(region.y, None)\n",
        "                pass\n",
        ("tests/studio/tui/drawing/test_canvas.py",),
    ),
    Fault(
        "a pane shows an older step when its page is opened again",
        "studio/tui/widgets/line_view.py",
        "        if not size:\n            self.refresh()\n",
        "        if not size:\n            pass\n",
        ("tests/studio/tui/test_repaints.py",),
    ),
    Fault(
        "a wording under way loses words after a resize",
        "studio/tui/widgets/edit_box.py",
        "        self.refresh()\n",
        "        pass\n",
        ("tests/studio/tui/test_repaints.py",),
    ),
    Fault(
        "a review that waits leaves open what was passed over",
        "studio/review/line_mode.py",
        "                self._later -= passed_over\n",
        "",
        (
            "tests/studio/session/test_living_runs.py::test_a_review_that_waits_stays_for_every_step_until_the_run_ends",
        ),
    ),
    Fault(
        "what another screen wrote goes before what is typed here",
        "studio/tui/drafts.py",
        "if ours.get(key) == known.get(key) else",
        "if theirs.get(key) != known.get(key) else",
        ("tests/studio/tui/test_drafts.py",),
    ),
    Fault(
        "a redo decides again what was undone before something new was decided",
        "studio/review/decider.py",
        "        self.undone.clear()\n",
        "",
        ("tests/studio/tui/pages/test_review_views.py",),
    ),
    Fault(
        "the doctor mends where a living process writes",
        "engines/record/repair.py",
        "        with write_lock(folder):\n            return cut_with_backup(path, end)",
        "        return cut_with_backup(path, end)",
        (
            "tests/studio/workspace/test_doctor.py::test_nothing_is_repaired_where_a_process_writes_and_all_is_elsewhere",
        ),
    ),
    Fault(
        "a key behind the name of one passes",
        "engines/secrets/rules.py",
        '            return is_random(match["behind_name"])',
        "            return False",
        ("tests/engines/secrets/test_mask.py::test_a_secret_is_known_by_what_stands_before_it",),
    ),
    Fault(
        "usual fields of a request are taken for secrets",
        "engines/secrets/rules.py",
        'return "bold" if unusual else "perhaps"',
        'return "sure"',
        ("tests/studio/secrets/test_run_files.py::test_a_usual_field_of_a_request_is_none",),
    ),
    Fault(
        "a value that a session named is not looked for elsewhere",
        "engines/secrets/redactor.py",
        "                self.found.add(part)",
        "                continue",
        (
            "tests/engines/secrets/test_redactor.py::test_a_value_that_a_name_told_is_hidden_wherever_else_it_stands",
        ),
    ),
    Fault(
        "the password of an address is stored as it is",
        "studio/secrets/run_files.py",
        '":".join(map(_mask_literals, match["user"].split(":", 1)))',
        'match["user"]',
        ("tests/studio/secrets/test_run_files.py",),
    ),
    Fault(
        "a command forgets what earlier runs had to hide",
        "studio/secrets/workspace.py",
        "_mark(salt, piece) in known",
        "False",
        ("tests/studio/secrets/test_remembered.py",),
    ),
    Fault(
        "attempts that broke off cost nothing",
        "engines/policies/chat/client.py",
        "self.usage += replace(lost, cost_usd=self._endpoint.settings.cost_usd(lost))",
        "self.usage += replace(lost, prompt_tokens=0, completion_tokens=0, cost_usd=0.0)",
        ("tests/engines/policies/chat/test_client.py",),
    ),
    Fault(
        "an address that failed is asked again at once",
        "engines/policies/chat/client.py",
        "failed.back_at = self.clock() + max(wait_s, error.wait_s or 0.0)",
        "failed.back_at = 0.0",
        ("tests/engines/policies/chat/test_replicas.py",),
    ),
    Fault(
        "a call that waits keeps the money it reserved",
        "engines/policies/chat/client.py",
        "            reservation.settle(self.usage)\n",
        "            pass\n",
        ("tests/engines/pipeline/test_budget.py",),
    ),
    Fault(
        "a call is asked again once too often",
        "engines/policies/chat/retry.py",
        "if not failed.transient or faults > policy.max_retries:",
        "if not failed.transient or faults > policy.max_retries + 1:",
        ("tests/engines/policies/chat/test_client.py",),
    ),
    Fault(
        "keys follow a redirect to another host",
        "engines/policies/chat/endpoint.py",
        "if same and safe and keeps_body:",
        "if safe and keeps_body:",
        ("tests/engines/policies/chat/test_addresses.py",),
    ),
    Fault(
        "a dated release counts as another model",
        "engines/policies/chat/request.py",
        '_RELEASE.sub("", bare)',
        "bare",
        ("tests/engines/policies/chat/test_addresses.py",),
    ),
    Fault(
        "an answer to another call is taken up",
        "engines/policies/handoff.py",
        'if given.get("id", name) != name:',
        "if False:",
        ("tests/engines/policies/test_handoff.py",),
    ),
    Fault(
        "log-probabilities at another temperature are passed on",
        "engines/policies/vllm.py",
        "        if sampling.temperature == 1.0:\n            return True",
        "        if sampling.temperature:\n            return True",
        ("tests/engines/policies/vllm/test_vllm_rollouts.py",),
    ),
    Fault(
        "a short prompt sees what pads it while replies are sampled",
        "engines/policies/hf_local/fast_decoder.py",
        "columns >= self.lengths[:, None]",
        "columns > self.lengths[:, None] + 3",
        ("tests/engines/policies/hf_local/test_decoder.py",),
    ),
    Fault(
        "tokens beyond the share of top_p are drawn",
        "engines/policies/hf_local/decoding.py",
        "before >= top_p[:, None]",
        "before > 2 * top_p[:, None]",
        (
            "tests/engines/policies/hf_local/test_decoder.py",
            "tests/engines/policies/hf_local/test_hf_local.py",
        ),
    ),
    Fault(
        "log-probabilities are taken at temperature 1",
        "engines/grpo/forward.py",
        "        if temperature != 1:\n",
        "        if False:\n",
        ("tests/engines/grpo/forward/test_forward.py",),
    ),
    Fault(
        "an update that nobody decided on stays in the weights",
        "engines/grpo/engine/weight_engine.py",
        "        finally:\n            self.optimiser.load(before)",
        "        finally:\n            pass",
        ("tests/engines/grpo/engine/test_sft_engine.py",),
    ),
    Fault(
        "a resumed engine begins its schedule again",
        "engines/grpo/engine/weight_engine.py",
        'self._optimiser_steps = int(plain["optimiser_steps"])',
        "self._optimiser_steps = 0",
        ("tests/engines/grpo/engine/test_sft_engine.py",),
    ),
    Fault(
        "a demonstration longer than the window is trained on",
        "engines/grpo/loss/sft_data.py",
        "return 1 < len(example) <= local.window",
        "return 1 < len(example)",
        (
            "tests/engines/grpo/engine/test_sft_engine.py",
            "tests/engines/grpo/loss/test_sft_data.py",
        ),
    ),
    Fault(
        "a file of a checkpoint that was changed is loaded",
        "engines/grpo/checkpoint/folders.py",
        "        if actual != expected:",
        "        if False:",
        ("tests/engines/grpo/checkpoint/test_checkpoint.py",),
    ),
    Fault(
        "a rejected idea comes again with nothing new for it",
        "engines/training_free/consolidation.py",
        "again = len(new) >= max(1, len(old))",
        "again = True",
        (
            "tests/engines/record/test_tombstones.py",
            "tests/engines/training_free/test_curation_text.py",
        ),
    ),
    Fault(
        "a leaked held-out question counts as a practised one",
        "engines/training_free/leaks.py",
        "self._held_out = len(hidden)",
        "self._held_out = 0",
        (
            "tests/engines/training_free/test_leaks.py",
            "tests/engines/training_free/test_lint.py",
        ),
    ),
    Fault(
        "a change of what a person pinned is not flagged",
        "engines/training_free/lint.py",
        "about is not None and about.pinned",
        "about is None",
        ("tests/engines/training_free/test_lint.py",),
    ),
    Fault(
        "attempts that did not see an experience are credited to it",
        "engines/training_free/reading.py",
        "if had or not row.sources:",
        "if True:",
        (
            "tests/engines/training_free/test_reflection.py",
            "tests/engines/training_free/test_training_free.py",
        ),
    ),
    Fault(
        "a row that nobody reviewed is practised on",
        "engines/data/dataset.py",
        "    if read.unreviewed:",
        "    if False:",
        ("tests/studio/data/test_sessions.py",),
    ),
    Fault(
        "equal questions share one id",
        "engines/data/dataset.py",
        'problem = replace(problem, id=f"{problem.id}#{nth}")',
        "pass",
        ("tests/engines/data/test_dataset.py",),
    ),
    Fault(
        "the answer's index counts from 1",
        "engines/data/choices.py",
        "found = {letters[int(float(text))]}",
        "found = {letters[int(float(text)) - 1]}",
        ("tests/engines/data/test_choices.py",),
    ),
    Fault(
        "a request that was taken back stays in a session",
        "engines/data/sessions/tries.py",
        'yield from self.close("taken back")',
        "pass",
        ("tests/engines/data/sessions/test_formats.py",),
    ),
)
