"""For each alert the series that raise it, as promtool's unit tests take them: one file that holds that it is raised, that it names what it should,
and that a healthy cluster raises none."""
import json

L = 'namespace="llm",service="prod-baton-admin"'
D, P = f'{L},role="decode",worker="decode-0"', f'{L},role="prefill",worker="prefill-0"'
HEALTHY = {
    f"baton_worker_up{{{D}}}": "1+0x60", f"baton_worker_up{{{P}}}": "1+0x60", f"baton_worker_restarts_total{{{D}}}": "1+0x60",
    f'vllm:request_success_total{{{L},finished_reason="stop"}}': "0+600x60", f'vllm:request_success_total{{{L},finished_reason="error"}}': "0+0x60",
    f"baton_retries_total{{{L}}}": "0+0x60", f"baton_migrations_total{{{L}}}": "0+0x60",
    f'vllm:time_to_first_token_seconds_bucket{{{L},le="1"}}': "0+600x60", f'vllm:time_to_first_token_seconds_bucket{{{L},le="+Inf"}}': "0+600x60",
    f'vllm:request_time_per_output_token_seconds_bucket{{{L},le="0.1"}}': "0+600x60",
    f'vllm:request_time_per_output_token_seconds_bucket{{{L},le="+Inf"}}': "0+600x60",
    f"baton_worker_queued_tokens{{{P}}}": "500+0x60", f"vllm:kv_cache_usage_perc{{{D}}}": "0.5+0x60", f"vllm:num_preemptions_total{{{D}}}": "0+0x60",
    f"vllm:prompt_tokens_total{{{P}}}": "0+600000x60", f"baton_kv_transfer_bytes_total{{{P}}}": "0+1000000x60",
    f'baton_kv_transfer_failures_total{{{D},reason="peer_lost"}}': "0+0x60", f'baton_kv_digest_mismatches_total{{{D},kind="wire"}}': "0+0x60",
    f"baton_leaked_kv_blocks{{{D}}}": "0+0x60", f"baton_landing_slots_quarantined{{{D}}}": "0+0x60",
    f"baton_tls_certificate_seconds_left{{{L}}}": "7776000-60x120",
}
# Alert -> the series of a healthy cluster that are otherwise, with values a minute.
RAISED = {
    "BatonRoutersGone": {f"baton_worker_up{{{who}}}": "1+0x30 stale" for who in (D, P)},
    "BatonRoleGone": {f"baton_worker_up{{{D}}}": "1+0x30 0+0x30"},
    "BatonWorkerDown": {f"baton_worker_up{{{P}}}": "1+0x30 0+0x30", f'baton_worker_up{{{L},role="prefill",worker="prefill-1"}}': "1+0x60"},
    "BatonWorkerRestarts": {f"baton_worker_restarts_total{{{D}}}": "1+1x60"},
    "BatonRequestsFail": {f'vllm:request_success_total{{{L},finished_reason="error"}}': "0+12x60"},
    "BatonRequestsRetried": {f"baton_retries_total{{{L}}}": "0+10x60"},
    "BatonFirstTokenSlow": {f'vllm:time_to_first_token_seconds_bucket{{{L},le="1"}}': "0+300x60",
                            f'vllm:time_to_first_token_seconds_bucket{{{L},le="40"}}': "0+600x60"},
    "BatonTokensSlow": {f'vllm:request_time_per_output_token_seconds_bucket{{{L},le="0.1"}}': "0+300x60",
                        f'vllm:request_time_per_output_token_seconds_bucket{{{L},le="2"}}': "0+600x60"},
    "BatonQueueGrows": {f"baton_worker_queued_tokens{{{P}}}": "200000+0x60"},
    "BatonKvFull": {f"vllm:kv_cache_usage_perc{{{D}}}": "0.97+0x60"},
    "BatonPreemptions": {f"vllm:num_preemptions_total{{{D}}}": "0+60x60"},
    "BatonPrefillIdle": {f'baton_kv_transfer_bytes_total{{{P}}}': "7+0x60"},
    "BatonTransfersFail": {f'baton_kv_transfer_failures_total{{{D},reason="peer_lost"}}': "0+6x60"},
    "BatonKvDamaged": {f'baton_kv_digest_mismatches_total{{{D},kind="wire"}}': "0+0x55 1+0x5"},
    "BatonKvLeaked": {f"baton_leaked_kv_blocks{{{D}}}": "3+0x60"},
    "BatonSlotsQuarantined": {f"baton_landing_slots_quarantined{{{D}}}": "2+0x60"},
    "BatonCertificateEnds": {f"baton_tls_certificate_seconds_left{{{L}}}": "500000-60x120"},
}
# What must be raised, too: a role that is gone is workers that are down.
WITH = {"BatonRoleGone": {"BatonWorkerDown"}}


def case(name, over, raised, minute):
    series = [{"series": s, "values": v} for s, v in {**HEALTHY, **over}.items()]
    return {"name": name, "interval": "1m", "input_series": series, "promql_expr_test": [
        {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{minute}m",
         "exp_samples": [{"labels": f'{{alertname="{a}"}}', "value": 1} for a in sorted(raised)]}]}


def unit_tests(rules):
    """promtool's file, for the rules at a path (YAML is a superset of JSON)."""
    cases = [case("healthy", {}, set(), 60)]
    cases += [case(alert, over, {alert} | WITH.get(alert, set()), 119 if "Certificate" in alert else 60) for alert, over in RAISED.items()]
    cases[-1] = case("BatonCertificateEnds", {s: v.replace("x60", "x120") for s, v in HEALTHY.items()} | RAISED["BatonCertificateEnds"],
                     {"BatonCertificateEnds"}, 119)
    return json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": cases})
