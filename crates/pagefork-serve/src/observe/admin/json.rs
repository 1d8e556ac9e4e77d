use std::fmt::Write;

use crate::http::front::Front;
use crate::observe::history::Sample;
use crate::observe::metrics::Histogram;
use crate::observe::recent::RecentFailure;

/// What the status page draws, as an object in JSON. Times are in nanoseconds.
pub(super) fn status(front: &Front, name: &str) -> String {
    let metrics = &front.metrics;
    let (busy, queued) = front.workers().busy_and_queued();
    let mut text = String::with_capacity(4096);
    // Writing to memory does not fail.
    let _ =
        write!(text, "{{\"name\":{},\"version\":\"{}\"", quoted(name), env!("CARGO_PKG_VERSION"));
    let _ = write!(text, ",\"stage\":\"{}\"", front.stage());
    let _ = write!(text, ",\"uptime_ms\":{}", front.begun.elapsed().as_millis());
    let _ = write!(text, ",\"resident_bytes\":{}", super::resident_bytes());
    let _ = write!(
        text,
        ",\"in_flight\":{},\"busy\":{busy},\"queued\":{queued},\"connections\":{},\
         \"received\":{},\"sent\":{}",
        metrics.in_flight.get(),
        metrics.connections.get(),
        metrics.received.get(),
        metrics.sent.get()
    );
    let statuses = metrics.statuses().map(|(class, count)| (format!("{class}xx"), count));
    let _ = write!(text, ",\"statuses\":{}", counts(statuses));
    let failures = metrics.failures().map(|(kind, count)| (kind.to_owned(), count));
    let _ = write!(text, ",\"failures\":{}", counts(failures));
    let _ = write!(text, ",\"recent\":[{}]", recent(front));
    let _ = write!(text, ",\"history\":[{}]", history(front));
    for (name, histogram) in [
        ("request", &metrics.request),
        ("wait", &metrics.wait),
        ("spawn", &metrics.spawn),
        ("run", &metrics.run),
    ] {
        let _ = write!(text, ",\"{name}\":{}", distribution(histogram));
    }
    match front.handler().and_then(|handler| handler.pool()) {
        None => text.push_str(",\"pool\":null"),
        Some(pool) => {
            let _ = write!(
                text,
                ",\"pool\":{{\"live\":{},\"parked\":{},\"resident_bytes\":{},\"dirty_pages\":{},\
                 \"warm\":{},\"cold\":{},\"trimmed\":{}}}",
                pool.live,
                pool.parked,
                pool.resident_bytes,
                pool.dirty_pages.map_or("null".to_owned(), |pages| pages.to_string()),
                pool.warm,
                pool.cold,
                pool.trimmed
            );
        }
    }
    text.push('}');
    text
}

/// The last minutes, a list a step: its milliseconds, requests, failures, the times that half
/// and 99 of 100 requests took at most, and the memory at its end.
fn history(front: &Front) -> String {
    let time = |ns: Option<u64>| ns.map_or("null".to_owned(), |ns| ns.to_string());
    let list = |sample: Sample| {
        let Sample { ms, requests, failures, half_ns, most_ns, resident_bytes } = sample;
        let (half, most) = (time(half_ns), time(most_ns));
        format!("[{ms},{requests},{failures},{half},{most},{resident_bytes}]")
    };
    front.history.samples().into_iter().map(list).collect::<Vec<_>>().join(",")
}

/// The last failures, the last one first.
fn recent(front: &Front) -> String {
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
    front.recent.all().into_iter().map(object).collect::<Vec<_>>().join(",")
}

fn counts(pairs: impl Iterator<Item = (String, u64)>) -> String {
    let pairs: Vec<_> = pairs.map(|(name, count)| format!("\"{name}\":{count}")).collect();
    format!("{{{}}}", pairs.join(","))
}

/// The buckets, each by where it ends, `null` for the last.
fn distribution(histogram: &Histogram) -> String {
    let buckets: Vec<_> = histogram
        .buckets()
        .map(|(end, count)| match end {
            Some(end) => format!("[{end},{count}]"),
            None => format!("[null,{count}]"),
        })
        .collect();
    format!("{{\"sum\":{},\"buckets\":[{}]}}", histogram.sum_ns(), buckets.join(","))
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
