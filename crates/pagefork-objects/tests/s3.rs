//! Images in an object store that speaks S3's protocol: moto's server, which `cargo xtask s3` fetches, and `cargo xtask soak`.

#![cfg(feature = "s3")]
#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagefork_image::*;
use pagefork_objects::{ObjectImages, ObjectSettings, ObjectUrl};

/// Names the directory of Python packages that has moto.
const PACKAGES: &str = "PAGEFORK_S3_PACKAGES";

/// Says what a process of this test does.
const PART: &str = "PAGEFORK_S3_PART";

/// Starts the service, has it ask who asks, and makes a bucket of a user. Says the port and the user's keys,
/// and then changes objects as it is told, line by line, until its input ends.
const SERVICE: &str = r#"
import sys, boto3, json, urllib.request
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
port = server.get_host_and_port()[1]
url = f"http://127.0.0.1:{port}"
asked = dict(endpoint_url=url, region_name="us-east-1")
root = dict(asked, aws_access_key_id="root", aws_secret_access_key="root")
boto3.client("s3", **root).create_bucket(Bucket="images")
iam = boto3.client("iam", **root)
iam.create_user(UserName="node")
policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="node", PolicyName="all", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="node")["AccessKey"]
iam.create_user(UserName="reader")
policy["Statement"][0]["Action"] = ["s3:Get*", "s3:List*", "s3:HeadObject"]
iam.put_user_policy(UserName="reader", PolicyName="reads", PolicyDocument=json.dumps(policy))
other = iam.create_access_key(UserName="reader")["AccessKey"]
# From now on nobody may do anything but by a policy.
plain = {"Content-Type": "text/plain"}
urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset-auth", b"0", plain))
say = lambda *words: print(*words, flush=True)
say(port, key["AccessKeyId"], key["SecretAccessKey"], other["AccessKeyId"], other["SecretAccessKey"])
s3 = boto3.client("s3", **dict(asked, aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"]))
for line in sys.stdin:
    verb, name, *rest = line.rstrip("\n").split(" ")
    if verb == "list":
        found = s3.list_objects_v2(Bucket="images", Prefix=name).get("Contents", [])
        say(*[object["Key"] for object in found])
    elif verb == "uploads":
        say(len(s3.list_multipart_uploads(Bucket="images").get("Uploads", [])))
    else:
        body = bytearray(s3.get_object(Bucket="images", Key=name)["Body"].read())
        if verb == "flip":
            body[int(rest[0])] ^= 1
        elif verb == "cut":
            del body[int(rest[0]):]
        s3.put_object(Bucket="images", Key=name, Body=bytes(body))
        say(len(body))
"#;

/// The service, which ends with this.
struct Service {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    port: String,
    /// Of who may do everything, and of who may read.
    node: [String; 2],
    reader: [String; 2],
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Service {
    fn new() -> Self {
        let packages = std::env::var(PACKAGES).expect("`cargo xtask s3` says where moto is");
        let mut command = Command::new("python3");
        command
            .env("PYTHONPATH", packages)
            .args(["-c", SERVICE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let [port, a, b, c, d] = words.try_into().expect("it has started");
        Self { child, output, port, node: [a, b], reader: [c, d] }
    }

    fn tell(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn list(&mut self, folder: &str) -> Vec<String> {
        self.tell(&format!("list {folder}")).split_whitespace().map(str::to_owned).collect()
    }

    /// Runs a part of this test in a process of its own, as whoever has these keys. What it says.
    fn part(&self, part: &str, [id, secret]: [&str; 2], more: &[(&str, &str)]) -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "images_are_kept_and_used_by_s3"]);
        command.env(PART, part).env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port));
        // What the user of this machine has set is of other places.
        for name in ["AWS_SESSION_TOKEN", "AWS_PROFILE", "HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
            command.env_remove(name);
        }
        command.env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", secret);
        command.envs(more.iter().copied());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{part}: {said}\n{output:?}");
        said
    }
}

/// Bytes of the large image: some parts of an upload.
const LARGE: u64 = 20 << 20;

/// A directory with a store of images in it.
fn local() -> (PathBuf, ImageStore) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s3");
    let store = ImageStore::open(path.join("local")).unwrap();
    (path, store)
}

fn save(local: &ImageStore, seed: u64, size: u64, parent: Option<&StoredImage>) -> StoredImage {
    let code = local.save_code(b"machine code").unwrap().hash();
    let code = SavedCode { hash: code, ..SavedCode::default() };
    let mut instance =
        SavedInstance { extents: vec![0..1 << 26], code, ..SavedInstance::default() };
    instance.parent_instance = parent.map(|_| 0);
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    // Nothing that compresses, or is twice the same.
    let words = (0..size / 8).map(|word| (word + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let pages = PageRuns::new(vec![vec![(0, bytes)]]);
    let draft = match parent {
        Some(parent) => parent.chain().delta(manifest, &pages).unwrap(),
        None => ImageDraft::new(manifest, &pages),
    };
    local.save(draft).unwrap()
}

fn at(url: &str, settings: ObjectSettings) -> Result<ObjectImages, ImageError> {
    ObjectImages::at(&url.parse::<ObjectUrl>()?, settings)
}

/// What is the same for all: answers are waited for 20 s, and no time passes between the steps of a collection.
fn settings() -> ObjectSettings {
    let timeout = Duration::from_secs(20);
    ObjectSettings { timeout, grace: Duration::ZERO, ..ObjectSettings::default() }
}

#[test]
#[ignore = "needs a service, and the feature `s3`: by `cargo xtask s3`"]
fn images_are_kept_and_used_by_s3() {
    match std::env::var(PART).as_deref() {
        Ok("use") => return put_and_use(),
        Ok("read") => return read_damaged(),
        Ok("collect") => return collect(),
        Ok("fail") => return fail(),
        Ok(other) => panic!("no such part: {other}"),
        Err(_) => {}
    }
    let mut service = Service::new();
    let [node, reader] = [service.node.clone(), service.reader.clone()];
    let node = node.each_ref().map(String::as_str);
    let reader = reader.each_ref().map(String::as_str);
    let (path, local) = local();
    let said = service.part("use", node, &[]);
    let hashes: Vec<&str> = said.split("hashes: ").nth(1).unwrap().split_whitespace().collect();
    let [large, tip] = hashes[..2] else { panic!("{said}") };

    // All of it is in the folder, nothing unfinished stays, and the names lead there.
    let keys = service.list("folder/");
    for key in [large, tip].map(|hash| format!("folder/images/{hash}")) {
        assert!(keys.contains(&key), "{keys:?}");
    }
    assert!(keys.contains(&"folder/names/ready".to_owned()), "{keys:?}");
    assert!(!keys.iter().any(|key| key.contains("clock")), "{keys:?}");
    assert_eq!(service.list("").len(), keys.len(), "nothing is outside of the folder");
    assert_eq!(service.tell("uploads x"), "0");

    // A byte is altered in a group, and in the manifest; an object is cut.
    service.tell(&format!("flip folder/images/{large} {}", LARGE - 5000));
    service.tell(&format!("flip folder/images/{tip} 200"));
    let said = service.part("read", node, &[("LARGE", large), ("TIP", tip)]);
    assert!(said.contains("refused: 2"), "{said}");
    service.tell(&format!("flip folder/images/{large} {}", LARGE - 5000));
    service.tell(&format!("flip folder/images/{tip} 200"));
    service.tell(&format!("cut folder/images/{large} {}", LARGE / 2));
    let said = service.part("read", node, &[("LARGE", large), ("TIP", tip)]);
    assert!(said.contains("refused: 2"), "without its parent a delta is nothing: {said}");

    // What nothing leads to goes; what cannot be read stays, as what it needs is not known.
    service.part("collect", node, &[("TIP", tip)]);
    assert_eq!(service.list("folder/images/"), [format!("folder/images/{large}")]);

    // What goes wrong is said by what it is.
    let fails = |service: &Service, keys, more: &[(&str, &str)], wanted: &[&str]| {
        let began = Instant::now();
        let said = service.part("fail", keys, more);
        assert!(began.elapsed() < Duration::from_secs(50), "{said}");
        let error = said.split("error: ").nth(1).unwrap_or_else(|| panic!("{said}"));
        for wanted in wanted {
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    };
    let at = |url: &'static str| ("URL", url);
    fails(&service, node, &[at("s3://no-such-bucket/x")], &["write clock/", "NoSuchBucket"]);
    let stranger = ["AKIASTRANGER00000000", "secret"];
    fails(&service, stranger, &[at("s3://images/x")], &["write clock/", "InvalidAccessKeyId"]);
    let guess = [node[0], "guessed"];
    fails(&service, guess, &[at("s3://images/x")], &["write clock/", "SignatureDoesNotMatch"]);
    fails(&service, reader, &[at("s3://images/x")], &["write clock/", "AccessDenied"]);
    // Nobody is there, and somebody who says nothing.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = ("AWS_ENDPOINT", &*format!("http://{free}"));
    fails(&service, node, &[at("s3://images/x"), nobody], &["clock/"]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    thread::spawn(move || {
        for caller in silent.incoming().flatten() {
            thread::spawn(move || { caller }.read_to_end(&mut Vec::new()));
        }
    });
    let silent = ("AWS_ENDPOINT", &*silent_url);
    fails(&service, node, &[at("s3://images/x"), silent], &["clock/", "has not answered for"]);
    drop(local);
    fs::remove_dir_all(path).unwrap();
}

/// Has images put there, looks at them group by group, and takes them back.
fn put_and_use() {
    let (path, local) = local();
    let remote = at("s3://images/folder/", settings()).unwrap();
    remote.check().unwrap();
    let large = save(&local, 1, LARGE, None);
    let tip = save(&local, 2, 8192, Some(&large));
    copy_image(&local, &remote, tip.hash()).unwrap();
    // Once more, which finds all of it there.
    copy_image(&local, &remote, tip.hash()).unwrap();
    remote.set_name("ready", tip.hash()).unwrap();
    assert_eq!(remote.names().unwrap()["ready"], tip.hash());
    let chain = remote.open_chain(large.hash()).unwrap();
    // As a program that runs needs them: here and there.
    let reader = chain.tip();
    for group in [0, reader.group_count() - 1, 7, 7] {
        assert_eq!(
            reader.read_group(group).unwrap(),
            large.chain().tip().read_group(group).unwrap()
        );
    }
    let back = ImageStore::open(path.join("back")).unwrap();
    copy_image(&remote, &back, tip.hash()).unwrap();
    back.verify(tip.hash()).unwrap();
    println!("hashes: {} {}", large.hash(), tip.hash());
}

/// Says how many of the two images are refused when they are opened or read.
fn read_damaged() {
    let hash = |name: &str| std::env::var(name).unwrap().parse::<ContentHash>().unwrap();
    let remote = at("s3://images/folder", settings()).unwrap();
    let (path, local) = local();
    let back = ImageStore::open(path.join("damaged")).unwrap();
    let mut refused = 0;
    for (name, seed) in [("LARGE", 1), ("TIP", 2)] {
        let read = || {
            let chain = remote.open_chain(hash(name))?;
            let tip = chain.tip();
            let original = local.load(tip.hash())?;
            // Each is a dozen requests: among the last ones is what was altered.
            let count = tip.group_count();
            for group in (0..count.min(2)).chain(count.saturating_sub(12)..count) {
                let found = tip.read_group(group)?;
                assert_eq!(found, original.chain().tip().read_group(group)?, "seed {seed}");
            }
            Ok::<(), ImageError>(())
        };
        match read() {
            Ok(()) => {}
            Err(error) => {
                assert!(matches!(error, ImageError::Damaged(_)), "{name}: {error:?}");
                println!("{name}: {error}");
                refused += 1;
                // Nor does it come in whole.
                copy_image(&remote, &back, hash(name)).unwrap_err();
                assert!(back.load(hash(name)).is_err());
            }
        }
    }
    println!("refused: {refused}");
}

/// Removes the name, and what only it has led to.
fn collect() {
    let tip: ContentHash = std::env::var("TIP").unwrap().parse().unwrap();
    let remote = at("s3://images/folder", ObjectSettings { lease: Duration::ZERO, ..settings() });
    let remote = remote.unwrap();
    remote.remove_name("ready").unwrap();
    assert!(remote.images().unwrap().contains(&tip));
    let began = Instant::now();
    loop {
        let report = remote.collect().unwrap();
        assert_eq!(report.damaged.len(), 1, "{report:?}");
        if remote.images().unwrap() == [report.damaged[0].0] {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "it stays: {report:?}");
        // Its clock has seconds.
        thread::sleep(Duration::from_millis(300));
    }
}

/// Says what is said of a service that cannot be used.
fn fail() {
    let url = std::env::var("URL").unwrap();
    let timeout = Duration::from_secs(3);
    let opened = at(&url, ObjectSettings { timeout, ..settings() });
    let error = opened.and_then(|remote| remote.check()).unwrap_err();
    println!("error: {error}");
}
