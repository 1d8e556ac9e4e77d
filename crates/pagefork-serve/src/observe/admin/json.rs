//! The data of the status page, as an object in JSON.

use std::fmt::{Display, Write};

use crate::handler::PoolGauges;
use crate::observe::admin::{AdminPages, ServerStatus, resident_bytes};
use crate::observe::history::{RecentFailure, Sample};
use crate::observe::metrics::Histogram;
use crate::observe::telemetry::Telemetry;

/// What the status page draws, as an object in JSON. Times are in nanoseconds.
pub(super) fn status(pages: &AdminPages) -> String {
    let (telemetry, metrics) = (&pages.telemetry, &pages.telemetry.metrics);
    let ServerStatus { stage, busy, queued, pool } = (pages.status)();
    let mut text = String::with_capacity(4096);
    // Writing to memory does not fail.
    let _ = write!(
        text,
        "{{\"name\":{},\"version\":\"{}\",\"stage\":\"{stage}\",\"uptime_ms\":{},\
         \"resident_bytes\":{},\"in_flight\":{},\"busy\":{busy},\"queued\":{queued},\"connections\":{},\
         \"received\":{},\"sent\":{}",
        quoted(&pages.name),
        env!("CARGO_PKG_VERSION"),
        telemetry.begun.elapsed().as_millis(),
        resident_bytes(),
        metrics.in_flight.get(),
        metrics.connections.get(),
        metrics.received.get(),
        metrics.sent.get()
    );
    let statuses = metrics.statuses().map(|(class, count)| (format!("{class}xx"), count));
    let _ = write!(text, ",\"statuses\":{}", counts(statuses));
    let failures = metrics.failures().map(|(kind, count)| (kind.to_owned(), count));
    let _ = write!(text, ",\"failures\":{}", counts(failures));
    let _ = write!(text, ",\"recent\":[{}]", recent(telemetry));
    let _ = write!(text, ",\"history\":[{}]", history(telemetry));
    for (name, histogram) in [
        ("request", &metrics.request),
        ("wait", &metrics.wait),
        ("spawn", &metrics.spawn),
        ("run", &metrics.run),
    ] {
        let _ = write!(text, ",\"{name}\":{}", distribution(histogram));
    }
    match pool {
        None => text.push_str(",\"pool\":null"),
        Some(pool) => {
            let PoolGauges { live, parked, resident_bytes, dirty_pages, .. } = pool;
            let PoolGauges { warm, cold, trimmed, strategy, growth, .. } = pool;
            let _ = write!(
                text,
                ",\"pool\":{{\"live\":{live},\"parked\":{parked},\
                 \"resident_bytes\":{resident_bytes},\"dirty_pages\":{},\"warm\":{warm},\
                 \"cold\":{cold},\"trimmed\":{trimmed},\"strategy\":{},\"growth\":{}}}",
                or_null(dirty_pages),
                text_or_null(strategy),
                text_or_null(growth)
            );
        }
    }
    text.push('}');
    text
}

/// The last minutes, a list a step: its milliseconds, requests, failures, the times that half
/// and 99 of 100 requests took at most, and the memory at its end.
fn history(telemetry: &Telemetry) -> String {
    let list = |sample: Sample| {
        let Sample { ms, requests, failures, half_ns, most_ns, resident_bytes } = sample;
        let (half, most) = (or_null(half_ns), or_null(most_ns));
        format!("[{ms},{requests},{failures},{half},{most},{resident_bytes}]")
    };
    telemetry.history.samples().into_iter().map(list).collect::<Vec<_>>().join(",")
}

/// The last failures, the latest first.
fn recent(telemetry: &Telemetry) -> String {
    let object = |failure: RecentFailure| {
        let ago = failure.when.elapsed().unwrap_or_default();
        format!(
            "{{\"ago_ms\":{},\"kind\":\"{}\",\"id\":{},\"text\":{}}}",
            ago.as_millis(),
            failure.kind.name(),
            quoted(&failure.id),
            quoted(&failure.text)
        )
    };
    telemetry.failures.all().into_iter().map(object).collect::<Vec<_>>().join(",")
}

fn counts(pairs: impl Iterator<Item = (String, u64)>) -> String {
    let pairs: Vec<_> = pairs.map(|(name, count)| format!("\"{name}\":{count}")).collect();
    format!("{{{}}}", pairs.join(","))
}

/// The buckets, each by where it ends, `null` for the last.
fn distribution(histogram: &Histogram) -> String {
    let buckets: Vec<_> =
        histogram.buckets().map(|(end, count)| format!("[{},{count}]", or_null(end))).collect();
    format!("{{\"sum\":{},\"buckets\":[{}]}}", histogram.sum_ns.get(), buckets.join(","))
}

fn or_null(number: Option<u64>) -> String {
    number.map_or("null".to_owned(), |number| number.to_string())
}

fn text_or_null(value: Option<impl Display>) -> String {
    value.map_or("null".to_owned(), |value| quoted(&value.to_string()))
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted() {
        assert_eq!(quoted("a\"b\\c\nd"), r#""a\"b\\c\u000ad""#);
    }
}
