//! The status page and the metrics.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{Client, PLAIN, Served, serve_program, until, writes};

/// A program with some requests behind it, of which one failed.
fn used() -> Served {
    let server = serve_program(writes(PLAIN, ""), |config| config.name = "<b>\"it\"</b>".into());
    for _ in 0..5 {
        assert_eq!(server.get("/").status, 200);
    }
    let mut client = server.connect();
    client.send("GET /%00 HTTP/1.1\r\nHost: a\r\nX-Request-Id: wrong-1\r\n\r\n");
    assert_eq!(client.answer().status, 400);
    // Counted when they are over, which clients see a little earlier.
    server.wait_for_metric("pagefork_requests_in_flight", 0.0);
    server
}

#[test]
fn metrics_are_in_prometheus_format() {
    let server = used();
    let answer = Client::new(server.admin).get("/metrics");
    assert_eq!(answer.field("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    let (mut types, mut values) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap();
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .filter(|family| types.get(*family).is_some_and(|kind| kind == "histogram"));
            assert!(types.contains_key(family.unwrap_or(name)), "{name} has no type");
            let value: f64 = value.parse().unwrap();
            assert!(values.insert(series.to_owned(), value).is_none(), "{series} twice");
        }
    }
    assert_eq!(values["pagefork_requests_total{code=\"2xx\"}"], 5.0);
    assert_eq!(values["pagefork_requests_total{code=\"4xx\"}"], 1.0);
    assert_eq!(values["pagefork_failures_total{kind=\"bad_request\"}"], 1.0);
    assert_eq!(values["pagefork_connections_total"], 6.0);
    for histogram in types.iter().filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name) {
        let bucket = format!("{histogram}_bucket{{le=\"+Inf\"}}");
        assert_eq!(values[&bucket], values[&format!("{histogram}_count")]);
        let mut counts: Vec<_> = values
            .iter()
            .filter_map(|(series, count)| {
                let end = series.strip_prefix(&format!("{histogram}_bucket{{le=\""))?;
                let end = end.strip_suffix("\"}")?;
                Some((if end == "+Inf" { f64::INFINITY } else { end.parse().unwrap() }, *count))
            })
            .collect();
        counts.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(counts.is_sorted_by_key(|(_, count)| *count), "{histogram} must not fall");
    }
    assert_eq!(values["pagefork_spawn_seconds_count"], 5.0);
}

#[test]
fn what_is_not_there_is_said() {
    let server = used();
    let mut client = Client::new(server.admin);
    let missing = client.get("/nothing");
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("/metrics"));
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.answer().status, 405);
    assert_eq!(client.get("/health").text(), "ok\n");
    assert_eq!(server.get("/metrics").text(), "", "the program has all paths of its own");
}

#[test]
fn the_last_minutes_and_errors_are_among_the_data() {
    let server = used();
    let data = || Client::new(server.admin).get("/status.json").text();
    assert!(data().contains("\"stage\":\"serving\""));
    let recent = data().split_once("\"recent\":[").unwrap().1.split_once(']').unwrap().0.to_owned();
    assert!(recent.contains("\"kind\":\"bad_request\",\"id\":\"wrong-1\",\"text\":"), "{recent}");
    until("a sample", || !data().contains("\"history\":[]"));
    let history =
        data().split_once("\"history\":[[").unwrap().1.split_once(']').unwrap().0.to_owned();
    let numbers: Vec<_> = history.split(',').collect();
    assert_eq!(numbers.len(), 6, "{history}");
    assert!(numbers[5].parse::<u64>().unwrap() > 0, "{history}");
}

#[test]
fn the_data_say_how_instances_are_reset_and_grow_and_why() {
    let server = serve_program(writes(PLAIN, ""), |_| {});
    let data = || Client::new(server.admin).get("/status.json").text();
    assert!(data().contains(",\"strategy\":null,\"growth\":null}"), "nothing has run yet");
    let mut client = server.connect();
    client.get("/");
    let first = data();
    assert!(first.contains("(asked for: auto): what it starts with\",\"growth\":\""), "{first}");
    // Each look shows what has been since the one before.
    until("another choice", || {
        client.get("/");
        let now = data();
        assert!(now.contains(",\"strategy\":\"") && !now.contains("\"growth\":null"), "{now}");
        !now.contains("what it starts with")
    });
}

#[test]
fn the_status_page_loads_nothing_from_elsewhere() {
    let server = used();
    let page = Client::new(server.admin).get("/");
    let policy = page.field("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    let text = page.text();
    for word in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!text.contains(word), "{word}");
    }
}

/// A browser without a window, spoken to in the DevTools protocol, over pipes.
struct Browser {
    child: Child,
    output: BufReader<ChildStdout>,
    count: u32,
}

impl Browser {
    /// `None` is a printed skip; where CI runs the tests, there must be one.
    fn start(name: &str) -> Option<Browser> {
        let found = ["chromium", "chromium-browser", "google-chrome"].iter().find(|name| {
            let mut version = Command::new(name);
            version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            version.status().is_ok_and(|status| status.success())
        });
        let Some(found) = found else {
            assert!(std::env::var_os("CI").is_none(), "no Chromium: `.ci/run` installs it");
            println!("skipped: there is no Chromium");
            return None;
        };
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("browser-{name}"));
        // The protocol wants descriptors 3 and 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", found])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Some(Browser { child, output, count: 0 })
    }

    /// Calls a method; gives the answer, in JSON.
    fn call(&mut self, method: &str, params: &str, session: &str) -> String {
        self.count += 1;
        let session = match session {
            "" => String::new(),
            session => format!(",\"sessionId\":\"{session}\""),
        };
        let id = format!("{{\"id\":{},", self.count);
        let call = format!("{id}\"method\":\"{method}\",\"params\":{params}{session}}}\0");
        self.child.stdin.as_mut().unwrap().write_all(call.as_bytes()).unwrap();
        loop {
            let mut message = Vec::new();
            self.output.read_until(0, &mut message).unwrap();
            assert!(!message.is_empty(), "the browser ended");
            let message = String::from_utf8(message).unwrap();
            if message.starts_with(&id) {
                assert!(message.contains("\"result\":"), "{call}: {message}");
                return message;
            }
        }
    }

    /// What an expression is on a page, once it is drawn, in a window of this size.
    fn evaluate(&mut self, address: &str, size: (u32, u32), expression: &str) -> String {
        let target = self.call("Target.createTarget", &format!("{{\"url\":\"{address}\"}}"), "");
        let target = member(&target, "targetId");
        let attach = format!("{{\"targetId\":\"{target}\",\"flatten\":true}}");
        let session = member(&self.call("Target.attachToTarget", &attach, ""), "sessionId");
        let (width, height) = size;
        let mobile = width < 600;
        let metrics = format!(
            "{{\"width\":{width},\"height\":{height},\"deviceScaleFactor\":1,\"mobile\":{mobile}}}"
        );
        self.call("Emulation.setDeviceMetricsOverride", &metrics, &session);
        let mut value = String::new();
        until("the page", || {
            let script = format!(
                "document.documentElement?.dataset.drawn === 'yes' ? '=' + ({expression}) : ''"
            );
            let evaluate = format!("{{\"expression\":\"{script}\"}}");
            let result = self.call("Runtime.evaluate", &evaluate, &session);
            value = member(&result, "value");
            value.starts_with('=')
        });
        value.split_off(1)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Closing its input ends it, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A string in an answer, with its escapes; empty if it is not there.
fn member(json: &str, name: &str) -> String {
    let Some((_, rest)) = json.split_once(&format!("\"{name}\":\"")) else { return String::new() };
    let mut end = 0;
    while !rest[end..].starts_with('"') {
        end += if rest[end..].starts_with('\\') { 2 } else { 1 };
    }
    rest[..end].to_owned()
}

#[test]
fn a_browser_draws_the_status_page() {
    let server = used();
    let Some(mut browser) = Browser::start("desk") else { return };
    let address = format!("http://{}/", server.admin);
    let mut is = |expression: &str| browser.evaluate(&address, (1280, 900), expression);
    let text = |id: &str| format!("document.getElementById('{id}').textContent");
    assert_eq!(is(&text("name")), r#"<b>\"it\"</b>"#, "text, not HTML");
    assert_eq!(is(&text("answered")), "6");
    assert_eq!(is(&text("failures")), "bad request1");
    assert_eq!(is(&text("statuses")), "2xx54xx1");
    // Of the last minutes, with axes. A sample is taken every two seconds.
    for id in ["rates", "times", "memory"] {
        let drawn = format!(
            "[...document.querySelectorAll('#{id} path:not(.grid)')].filter(p => p.getAttribute('d')).length"
        );
        until("a sample", || is(&drawn) != "0");
        let labels =
            format!("document.querySelector('#{id} .x').innerText.replace(/\\\\s+/g, ' ')");
        assert_eq!(is(&labels), "5 min ago now");
        let labels = format!("document.querySelectorAll('#{id} .y span').length");
        assert!(["2", "3"].contains(&&*is(&labels)), "{id}");
    }
    let recent = is(&text("recent"));
    assert!(recent.contains("bad request wrong-1, ") && recent.contains(" s ago"), "{recent}");
    let state = is(&text("state"));
    assert!(state.starts_with("up for ") && state.contains(" s, version "), "{state}");
    // The program's slot is parked, and both histograms have bars.
    assert_ne!(is("document.querySelectorAll('#slots i').length"), "0");
    for id in ["spawn", "run"] {
        let bars = format!(
            "[...document.querySelectorAll('#{id} .bars div')].filter(bar => bar.offsetHeight > 0).length"
        );
        assert_ne!(is(&bars), "0", "{id}");
    }
}

#[test]
fn a_phone_shows_the_status_page_without_scrolling_sideways() {
    let server = used();
    let Some(mut browser) = Browser::start("phone") else { return };
    let address = format!("http://{}/", server.admin);
    let widths = "innerWidth + ' ' + document.documentElement.scrollWidth";
    assert_eq!(browser.evaluate(&address, (390, 844), widths), "390 390");
    assert_eq!(browser.evaluate(&address, (320, 568), widths), "320 320");
}
