#!/usr/bin/env python3
"""Grafana's boards, from rows of panels: boards.py writes deploy/helm/baton/files/dashboards/*.json anew. A panel says how to read it and
what to do; every query is evaluated by a real Prometheus in tests/deploy/test_monitoring.py.

In queries, OF stands for the labels of one installation, and WORKER for those with the chosen workers' role."""
import json
import pathlib
import sys

OUT = pathlib.Path(__file__).resolve().parents[1] / "helm" / "baton" / "files" / "dashboards"
OF = 'namespace=~"$namespace",service=~"$service"'
TOKENS, EACH = "suffix:tokens/s", "suffix:/s"
BY = "max by (role, worker)"  # several routers report the same worker


def quantile(q, metric, by=""):
    keys = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({keys}) (rate({metric}_bucket{{OF}}[$__rate_interval])))"


def rate(metric, *keys, over="$__rate_interval"):
    """A second, of what workers count: added up over workers, by `keys`."""
    by = f" by ({', '.join(keys)})" if keys else ""
    return f"sum{by} (max by ({', '.join(dict.fromkeys((*keys, 'role', 'worker')))}) (rate({metric}{{OF}}[{over}])))"


# What workers computed of prompts: all but what their caches had.
COMPUTED = f"{rate('vllm:prompt_tokens_total', 'role', over='2m')} - {rate('vllm:prefix_cache_hits_total', 'role', over='2m')}"


def panel(title, unit, why, *queries, kind="timeseries", stack=False):
    return {"title": title, "unit": unit, "why": why, "queries": queries, "kind": kind, "stack": stack}


STAGES = ["router", "lost", "reserve", "queue_prefill", "prefill", "network", "transfer", "queue_decode", "first_decode", "decode"]
BOARDS = {
    "overview": ("Baton: overview", [
        panel("Workers up", "short", "Fewer than you run: look at Failures.", ("sum by (role) (max by (role, worker) (baton_worker_up{OF}))", "{{role}}"), kind="stat"),
        panel("Requests", "reqps", "What is answered, by how it ended. `error` is never normal.",
              ("sum by (finished_reason) (rate(vllm:request_success_total{OF}[$__rate_interval]))", "{{finished_reason}}"), stack=True),
        panel("Time to first token", "s", "Rises when prompts come faster than prefill computes them: see Stages.",
              (quantile(0.5, "vllm:time_to_first_token_seconds"), "p50"), (quantile(0.95, "vllm:time_to_first_token_seconds"), "p95"),
              (quantile(0.99, "vllm:time_to_first_token_seconds"), "p99")),
        panel("Time per output token", "s", "Rises with sequences in a step: more decode workers, or fewer sequences each.",
              (quantile(0.5, "vllm:request_time_per_output_token_seconds"), "p50"), (quantile(0.95, "vllm:request_time_per_output_token_seconds"), "p95")),
        panel("Tokens", TOKENS, "Of prompts, each once however many workers took part, and of answers.",
              ("sum(rate(vllm:request_prompt_tokens_sum{OF}[$__rate_interval]))", "prompt"), (rate("vllm:generation_tokens_total"), "output")),
        panel("Requests by stage", "short", "What waits and what runs at all workers.", ("max by (stage) (baton_queue_depth{OF})", "{{stage}}"), stack=True),
        panel("KV in use", "percentunit", "Near 100 % sequences are preempted: see KV.", (f"{BY} (vllm:kv_cache_usage_perc{{OF}})", "{{worker}}")),
        panel("HTTP status", "reqps", "4xx is what clients did, or too much of it (429); 5xx: no worker, or an error of ours.", ("sum by (status) (rate(http_requests_total{OF}[$__rate_interval]))", "{{status}}"), stack=True),
    ]),
    "stages": ("Baton: stages of a request", [
        panel("Mean time of each stage", "s", "They add up to the time to the first token, and then `decode`. The widest band is where time goes.",
              ("sum by (stage) (rate(baton_stage_seconds_sum{OF}[$__rate_interval])) / sum by (stage) (rate(baton_stage_seconds_count{OF}[$__rate_interval]))", "{{stage}}"),
              stack=True),
        *(panel(f"{stage}: p50, p95, p99", "s", {
            "router": "Template, tokenizer and choice of the worker: more routers.", "lost": "Spent on workers that were lost or full: see Failures.",
            "reserve": "Asking a decode worker for room: more KV memory, or more of them.", "network": "What the others leave over: the network, and wake-ups on busy machines.",
            "queue_prefill": "Waiting for a prefill worker: more prefill workers.", "prefill": "Computing the prompt: faster or fewer tokens a step.",
            "transfer": "KV that arrives after prefill has ended: the network, or TCP where RDMA was meant.",
            "queue_decode": "Waiting for a decode worker: more of them, or more KV memory.", "first_decode": "The first step on the decode worker.",
            "decode": "All further tokens: long answers, or many sequences."}[stage],
            *((quantile(q, "baton_stage_seconds", "stage").replace("{OF}", f'{{OF,stage="{stage}"}}'), f"p{int(q * 100)}") for q in (0.5, 0.95, 0.99)))
          for stage in STAGES),
        panel("End to end", "s", "As clients see it.", (quantile(0.5, "vllm:e2e_request_latency_seconds"), "p50"), (quantile(0.95, "vllm:e2e_request_latency_seconds"), "p95")),
    ]),
    "balance": ("Baton: prefill and decode", [
        panel("Prompt tokens that wait", "short", "Prefill waits: more prefill workers. Decode waits: more decode workers.",
              (f"sum by (role) ({BY} (baton_worker_queued_tokens{{OF}}))", "{{role}}")),
        panel("Wait that is predicted", "s", "What waits, by the speed of the last two minutes: a new prompt's time before it is computed. `waitSeconds` scales by it.",
              (f"sum by (role) ({BY} (baton_worker_queued_tokens{{OF}})) / clamp_min({COMPUTED}, 1)", "{{role}}")),
        panel("Running sequences", "short", "An idle role beside a busy one is the wrong ratio.", (f"{BY} (vllm:num_requests_running{{OF}})", "{{worker}}")),
        panel("Waiting sequences", "short", "Behind those that run; a queue at one worker only is a wrong prediction: /debug/route.", (f"{BY} (vllm:num_requests_waiting{{OF}})", "{{worker}}")),
        panel("Prompt tokens by worker", TOKENS, "Of prompts that a worker took up, cached ones and those that were handed over to it, too. Uneven within a role: /debug/route.",
              (f"{BY} (rate(vllm:prompt_tokens_total{{OF}}[$__rate_interval]))", "{{worker}}"), stack=True),
        panel("KV handed over", "Bps", "Nothing, while long prompts come: prefill takes no part (`/debug/route` says why).",
              (f"{BY} (rate(baton_kv_transfer_bytes_total{{OF,role=\"prefill\"}}[$__rate_interval]))", "{{worker}}")),
        panel("Steps of a handoff under way", "short", "Tickets that decode workers gave, jobs of prefill workers.",
              ("sum(max by (worker) (baton_handoff_tickets{OF}))", "tickets"), ("sum(max by (worker) (baton_handoff_jobs{OF}))", "jobs")),
    ]),
    "kv": ("Baton: KV memory and transfers", [
        panel("KV in use", "percentunit", "Near 100 % sequences are preempted and computed again.", (f"{BY} (vllm:kv_cache_usage_perc{{OF}})", "{{worker}}")),
        panel("Prefix hits", "percentunit", "Share of prompt tokens whose KV was there.",
              (f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}", "hits")),
        panel("Hits that routers foresaw, and that came", TOKENS, "Apart: caches drop prefixes before they are used again.",
              ("sum(rate(baton_prefix_hit_tokens_predicted_total{OF}[$__rate_interval]))", "foreseen"),
              ("sum(rate(baton_prefix_hit_tokens_reported_total{OF}[$__rate_interval]))", "came")),
        panel("Preemptions", EACH, "More KV memory, or fewer sequences.", (f"{BY} (rate(vllm:num_preemptions_total{{OF}}[$__rate_interval]))", "{{worker}}")),
        panel("Rate measured between each pair", "GBs", "By the self-test. `tcp` on a cluster with RDMA is a fault.",
              ("max by (worker, peer, transport, path) (baton_kv_peer_gigabytes_per_second{OF})", "{{worker}} → {{peer}}, {{transport}} ({{path}})")),
        panel("Rate of transfers", "GBs", "Bytes by the time in which some were under way, since the start.", ("max by (worker, transport) (baton_kv_transfer_gigabytes_per_second{OF})", "{{worker}}, {{transport}}")),
        panel("Landing slots", "short", "None free for long: more --landing-slots. Quarantined: a frozen prefill worker.",
              ("sum(max by (worker) (baton_landing_slots_free{OF}))", "free"), ("sum(max by (worker) (baton_landing_slots_granted{OF}))", "granted"),
              ("sum(max by (worker) (baton_landing_slots_quarantined{OF}))", "quarantined")),
        panel("Leaked blocks", "short", "Above 0 while nothing runs is a bug of ours.", (f"{BY} (baton_leaked_kv_blocks{{OF}})", "{{worker}}")),
    ]),
    "router": ("Baton: routers", [
        panel("Requests in each router", "short", "Even, if the load balancer is.", ("baton_router_running_requests{OF}", "{{instance}}")),
        panel("HTTP latency", "s", "Up to the end of the answer.", (quantile(0.5, "http_request_duration_seconds"), "p50"), (quantile(0.95, "http_request_duration_seconds"), "p95")),
        panel("Texts that wait for a tokenizer thread", "short", "Above 0 for long: --tokenizer-threads.", ("sum(baton_router_texts_queued{OF})", "texts")),
        panel("Text found tokenized", "percentunit", "Share of bytes whose tokens were known.",
              ("sum(rate(baton_router_token_cache_found_bytes_total{OF}[$__rate_interval])) / (sum(rate(baton_router_token_cache_found_bytes_total{OF}"
               "[$__rate_interval])) + sum(rate(baton_router_token_cache_tokenized_bytes_total{OF}[$__rate_interval])))", "found")),
        panel("Memory of indexes", "bytes", "--index-max-bytes and --token-cache-mib are the limits.",
              ("sum by (instance) (baton_router_index_bytes{OF})", "prefixes, {{instance}}"), ("sum by (instance) (baton_router_token_cache_bytes{OF})", "tokens, {{instance}}")),
        panel("Prompts and answers", "short", "Tokens of the median and of long ones.", (quantile(0.5, "vllm:request_prompt_tokens"), "prompt p50"),
              (quantile(0.95, "vllm:request_prompt_tokens"), "prompt p95"), (quantile(0.95, "vllm:request_generation_tokens"), "answer p95")),
    ]),
    "failures": ("Baton: failures", [
        panel("Requests that failed", "percentunit", "Clients saw an error.",
              ('sum(rate(vllm:request_success_total{OF,finished_reason="error"}[$__rate_interval])) / sum(rate(vllm:request_success_total{OF}[$__rate_interval]))', "errors")),
        panel("Requests refused", "reqps", "By reason. `overloaded` is too much at once, `unavailable` no worker; the others are the clients' own.",
              ("sum by (reason) (rate(baton_refused_requests_total{OF}[$__rate_interval]))", "{{reason}}"), stack=True),
        panel("Computed a second time", "short", "Retries before the first token, migrations after it.",
              ("sum(rate(baton_retries_total{OF}[$__rate_interval]))", "retries"), ("sum(rate(baton_migrations_total{OF}[$__rate_interval]))", "migrations"),
              ("sum(baton_router_recomputing_requests{OF})", "now")),
        panel("Workers lost and started", "short", "A worker that flaps: its log's last line.",
              (f"{BY} (increase(baton_worker_losses_total{{OF}}[5m]))", "{{worker}} lost"), (f"{BY} (increase(baton_worker_restarts_total{{OF}}[5m]))", "{{worker}} started")),
        panel("Transfers that failed", EACH, "By reason; wire_digest and source_digest are damaged memory or cards.",
              (rate("baton_kv_transfer_failures_total", "reason"), "{{reason}}")),
        panel("Damaged KV", "short", "Found and computed again; the answer is right, the machine is not.",
              ("max by (worker, kind) (increase(baton_kv_digest_mismatches_total{OF}[5m]))", "{{worker}} {{kind}}")),
        panel("Handoffs refused", EACH, "No room: more decode workers or KV memory.",
              (rate("baton_handoff_nacks_total", "kind"), "{{kind}}"), (rate("baton_handoff_no_room_total"), "no room")),
        panel("Certificates end in", "s", "Renew the files; no restart.", ("min by (instance) (baton_tls_certificate_seconds_left{OF})", "{{instance}}")),
    ]),
}


def drawn(number, what):
    """A panel in Grafana's own form."""
    wide = 12
    targets = [{"refId": chr(ord("A") + i), "expr": query.replace("OF", OF), "legendFormat": legend, "datasource": {"type": "prometheus", "uid": "$datasource"}}
               for i, (query, legend) in enumerate(what["queries"])]
    custom = {"drawStyle": "line", "fillOpacity": 20 if what["stack"] else 5, "showPoints": "never", "stacking": {"mode": "normal" if what["stack"] else "none"}}
    defaults = {"unit": what["unit"], "min": 0} | ({"custom": custom} if what["kind"] == "timeseries" else {})
    return {"id": number + 1, "title": what["title"], "description": what["why"], "type": what["kind"], "targets": targets,
            "datasource": {"type": "prometheus", "uid": "$datasource"}, "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}
            if what["kind"] == "timeseries" else {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}},
            "gridPos": {"h": 8, "w": wide, "x": wide * (number % 2), "y": 8 * (number // 2)}}


def variable(name, label):
    return {"name": name, "label": label, "type": "query", "datasource": {"type": "prometheus", "uid": "$datasource"},
            "query": f"label_values(baton_worker_up, {name})", "refresh": 2, "includeAll": True,
            "allValue": ".*", "multi": True, "current": {"text": "All", "value": "$__all"}}


def board(name):
    title, panels = BOARDS[name]
    return json.dumps({
        "uid": f"baton-{name}", "title": title, "tags": ["baton"], "schemaVersion": 39, "version": 1, "editable": True, "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "Baton", "tags": ["baton"], "asDropdown": True, "includeVars": True, "keepTime": True,
                   "icon": "", "tooltip": "", "url": "", "targetBlank": False}],
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                                variable("namespace", "Namespace"), variable("service", "Installation")]},
        "panels": [drawn(i, p) for i, p in enumerate(panels)]}, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    for each in BOARDS:
        (OUT / f"baton-{each}.json").write_text(board(each))
    sys.exit(0)
