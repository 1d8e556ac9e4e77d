//! All metrics in Prometheus's text format.

use std::fmt::{Display, Write};

use crate::observe::admin::{AdminPages, ServerStatus, resident_bytes};
use crate::observe::metrics::Histogram;

/// Everything that is counted, in Prometheus's text format.
pub(super) fn metrics(pages: &AdminPages) -> String {
    let mut text = PrometheusText(String::with_capacity(16 * 1024));
    let (telemetry, metrics) = (&pages.telemetry, &pages.telemetry.metrics);
    let ServerStatus { busy, queued, pool, .. } = (pages.status)();
    text.family("requests_total", "counter", "Responses by the class of their status.");
    for (class, count) in metrics.statuses() {
        text.sample("requests_total", &format!("{{code=\"{class}xx\"}}"), count);
    }
    text.family("failures_total", "counter", "Requests that their handler did not answer.");
    for (kind, count) in metrics.failures() {
        text.sample("failures_total", &format!("{{kind=\"{kind}\"}}"), count);
    }
    text.one("requests_in_flight", "gauge", "Requests under way.", metrics.in_flight.get());
    text.one("handlers_busy", "gauge", "Requests that are being handled.", busy);
    text.one("requests_queued", "gauge", "Requests that wait to be handled.", queued);
    text.one("connections", "gauge", "Open connections.", metrics.connections.get());
    let connections = metrics.connections_total.get();
    text.one("connections_total", "counter", "Connections there have been.", connections);
    text.one(
        "received_bytes_total",
        "counter",
        "Bytes of requests' bodies.",
        metrics.received.get(),
    );
    text.one("sent_bytes_total", "counter", "Bytes of responses' bodies.", metrics.sent.get());
    text.histogram("request_seconds", "From a request's head to its last byte.", &metrics.request);
    text.histogram("wait_seconds", "How long requests waited to be handled.", &metrics.wait);
    text.histogram("spawn_seconds", "Making a fresh instance.", &metrics.spawn);
    text.histogram("run_seconds", "Running it.", &metrics.run);
    if let Some(pool) = pool {
        text.family("slots", "gauge", "Slots of the pool by what they do.");
        text.sample("slots", "{state=\"live\"}", pool.live);
        text.sample("slots", "{state=\"parked\"}", pool.parked);
        text.one("pool_resident_bytes", "gauge", "Memory of parked slots.", pool.resident_bytes);
        if let Some(pages) = pool.dirty_pages {
            text.one("dirty_pages_total", "counter", "Written pages that resets met.", pages);
        }
        text.family("spawns_total", "counter", "Spawns by the slot that they found.");
        text.sample("spawns_total", "{slot=\"warm\"}", pool.warm);
        text.sample("spawns_total", "{slot=\"cold\"}", pool.cold);
        text.one("slots_trimmed_total", "counter", "Parked slots given back.", pool.trimmed);
    }
    let uptime = telemetry.begun.elapsed().as_secs_f64();
    text.one("uptime_seconds", "gauge", "Since the server started.", uptime);
    text.one("resident_bytes", "gauge", "Memory of the process.", resident_bytes());
    text.0
}

struct PrometheusText(String);

impl PrometheusText {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to memory does not fail.
        let _ = write!(self.0, "# HELP pagefork_{name} {help}\n# TYPE pagefork_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "pagefork_{name}{labels} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        let mut total = 0;
        for (end_ns, count) in histogram.buckets() {
            total += count;
            let end = end_ns.map_or("+Inf".to_owned(), seconds);
            self.sample(&format!("{name}_bucket"), &format!("{{le=\"{end}\"}}"), total);
        }
        self.sample(&format!("{name}_sum"), "", seconds(histogram.sum_ns.get()));
        self.sample(&format!("{name}_count"), "", total);
    }
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}
