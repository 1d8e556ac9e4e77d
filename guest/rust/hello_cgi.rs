//! Answers a request, as a CGI program, with a page that shows it, and counts:
//! to one, because each request has an instance of its own.

use std::env;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};

/// Requests that this instance has answered.
static COUNT: AtomicU32 = AtomicU32::new(0);

fn main() -> io::Result<()> {
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let mut body = String::new();
    // Most requests have none; what is no text is not shown.
    io::stdin().take(4096).read_to_string(&mut body).ok();
    let page = format!(
        "<!doctype html>\n\
         <html lang=\"en\">\n\
         <meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Hello</title>\n\
         <style>body {{ font: 16px/1.5 system-ui; margin: 2em auto; max-width: 40em; padding: 0 1em }}\n\
         dt {{ color: #666 }} dd {{ margin: 0 0 .5em; overflow-wrap: anywhere }}</style>\n\
         <h1>Hello from WebAssembly</h1>\n\
         <dl>\n\
         <dt>Method</dt><dd>{}</dd>\n\
         <dt>Path</dt><dd>{}</dd>\n\
         <dt>Query</dt><dd>{}</dd>\n\
         <dt>Body</dt><dd>{}</dd>\n\
         <dt>Requests that this instance has answered</dt><dd id=\"count\">{count}</dd>\n\
         </dl>\n",
        variable("REQUEST_METHOD"),
        variable("PATH_INFO"),
        variable("QUERY_STRING"),
        escaped(&body),
    );
    let mut response =
        format!("Content-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\r\n", page.len());
    response.push_str(&page);
    io::stdout().write_all(response.as_bytes())
}

fn variable(name: &str) -> String {
    escaped(&env::var(name).unwrap_or_default())
}

/// Text as HTML shows it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
