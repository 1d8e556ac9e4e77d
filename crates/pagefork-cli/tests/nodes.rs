//! `pagefork node`: two users on one machine, each with a store, keys and nodes that they know.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use common::command;
use common::remote::{Relay, SUMMER, Started, confined, program, sum_of_words, two_nodes};
use common::users::{Nobody, Serving, User, is_root, pass_without_rights};

/// Prints that it is ready, reads a line, and prints it.
const READER: &str = r#"
    (func (export "_start")
        (call $print (i32.const 16) (i32.const 6))
        (call $read)
        (call $print (i32.const 256) (i32.load (i32.const 8))))"#;

#[test]
fn a_program_goes_on_at_another_node_once_each_trusts_what_it_has_to() {
    let (maker, runner) = (User::new("maker"), User::new("runner"));
    let module = program("nodes-reader.wat", READER);
    maker.does(&format!("snapshot --store STORE -o ready {module}"));
    let serving = maker.serve();
    let address = &serving.address;
    let restore = "restore --store STORE maker/ready";

    runner.fails(restore, "no node \"maker\" is known");
    runner.does(&format!("node trust maker {} --serve", maker.node_key));
    runner.fails(restore, "nothing is fetched from node maker");
    // Fetching from it is one thing, running what it has signed another, and both need its consent.
    runner.does(&format!("node trust maker {} --address {address}", maker.node_key));
    runner.fails(restore, "must trust the other's key");
    maker.does(&format!("node trust runner {} --address 127.0.0.1:1", runner.node_key));
    runner.fails(restore, "must trust the other's key");
    maker.does(&format!("node trust runner {} --serve", runner.node_key));
    runner.fails(restore, "none of its 1 signatures is of a trusted key");
    assert_eq!(runner.does("image --store STORE ls").lines().count(), 1, "nothing came");
    let signer = &maker.image_key;
    let trust =
        format!("node trust maker {} --address {address} --signer {signer}", maker.node_key);
    runner.does(&trust);

    let ended = runner.run(restore, "hello");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "hello"), "{}", ended.stderr);
    let ended = runner.run("run --store STORE --from maker/ready", "again");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "again"), "{}", ended.stderr);
    let ended = runner.run("fork --store STORE --from maker/ready -n 3", "");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for number in 1..=3 {
        assert!(ended.stdout.contains(&number.to_string()), "{}", ended.stdout);
    }
    runner.fails("restore --store STORE maker/other", "it has no such image");

    let list = runner.does("node ls");
    assert!(list.contains(address) && list.contains(&maker.node_key), "{list}");
    maker.does("node forget runner");
    runner.fails(restore, "must trust the other's key");
    maker.fails("node forget runner", "no node \"runner\" is known");
}

#[test]
fn a_node_that_is_not_known_has_an_image_by_a_token() {
    let (maker, runner) = (User::new("grants"), User::new("shows"));
    let module = program("nodes-tokens.wat", READER);
    maker.does(&format!("snapshot --store STORE -o ready {module}"));
    maker.does(&format!("snapshot --store STORE -o other {module}"));
    let serving = maker.listen_with("serve --tokens --addr 127.0.0.1:0");
    let (address, key, signer) = (&serving.address, &maker.node_key, &maker.image_key);
    runner.does(&format!("node trust maker {key} --address {address} --signer {signer}"));
    runner.fails("restore --store STORE maker/ready", "this node needs a token for it");

    let file = runner.config.join("token");
    let grant = |words: &str| {
        let token = maker.does(&format!("node grant --store STORE {words}"));
        fs::write(&file, token).unwrap();
    };
    let restore = format!("restore --store STORE --token {}", file.display());
    grant(&format!("ready --for {} --expires 10m", runner.node_key));
    let ended = runner.run(&format!("{restore} maker/ready"), "hello");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "hello"), "{}", ended.stderr);
    grant(&format!("ready --for {}", maker.node_key));
    runner
        .fails(&format!("{restore} maker/other"), "the token is none of that image, for this node");
    grant(&format!("other --for {} --expires 1s", runner.node_key));
    thread::sleep(Duration::from_millis(2100));
    runner.fails(&format!("{restore} maker/other"), "the token has expired: ask for a new one");
    fs::write(&file, "no digits").unwrap();
    runner.fails(&format!("{restore} maker/other"), "has no token");
    maker.fails("node grant --store STORE none --for nobody", "none");
    maker.fails("node grant --store STORE ready --for nobody", "no node \"nobody\" is known");
    drop(serving);

    // A node that takes none lets nobody in for one.
    let serving = maker.serve();
    let address = &serving.address;
    runner.does(&format!("node trust maker {key} --address {address} --signer {signer}"));
    grant(&format!("other --for {} --expires 10m", runner.node_key));
    runner.fails(&format!("{restore} maker/other"), "must trust the other's key");
}

#[test]
fn nodes_that_are_reached_by_quic_do_the_same() {
    let (maker, runner) = (User::new("quic-maker"), User::new("quic-runner"));
    let module = program("nodes-quic.wat", READER);
    maker.does(&format!("snapshot --store STORE -o ready {module}"));
    maker.does(&format!("node trust runner {} --serve --run", runner.node_key));
    let serving = maker.listen_at("run", "quic://127.0.0.1:0");
    let (address, key) = (&serving.address, &maker.node_key);
    assert!(address.starts_with("quic://"), "{address}");
    let signer = &maker.image_key;
    runner.does(&format!("node trust maker {key} --address {address} --signer {signer}"));
    let ended = runner.run("restore --store STORE maker/ready", "hello");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "hello"), "{}", ended.stderr);
    let ended = runner.run(&format!("node start maker {module}"), "again");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "ready\nagain"), "{}", ended.stderr);
    // The two are found at different places.
    let tls = address.trim_start_matches("quic://");
    runner.does(&format!("node trust maker {key} --address {tls} --signer {signer}"));
    runner.fails("restore --store STORE maker/other", "cannot reach node");
}

#[test]
fn a_node_runs_programs_for_those_who_may_have_them_run() {
    let (node, user) = (User::new("runs"), User::new("asks"));
    let module = program("nodes-running.wat", READER);
    let running = node.listen("run");
    let address = &running.address;
    user.does(&format!("node trust edge {} --address {address}", node.node_key));
    let start = format!("node start edge {module}");
    user.fails(&start, "must trust the other's key");
    node.does(&format!("node trust asks {} --serve", user.node_key));
    user.fails(&start, "edge");
    node.does(&format!("node trust asks {} --run", user.node_key));
    let ended = user.run(&start, "hello");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "ready\nhello"), "{}", ended.stderr);
    // Images are another right.
    user.fails("restore --store STORE edge/none", "edge/none");

    let detached = format!("node start --detach --name later edge {module}");
    let id = user.does(&detached).trim().to_owned();
    let list = user.does("node ps edge");
    assert!(list.contains(&id) && list.contains("later") && list.contains("runs"), "{list}");
    let ended = user.run("node attach edge/later", "again");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "ready\nagain"), "{}", ended.stderr);
    user.fails("node attach edge/later", "no program \"later\"");
    user.does(&detached);
    user.does("node stop edge/later");
    let list = user.does("node ps edge");
    assert!(list.contains("stopped"), "{list}");

    // From an image of the node.
    node.does(&format!("snapshot --store STORE -o captured {module}"));
    let ended = user.run("node start edge --from captured", "third");
    assert_eq!((ended.code, &ended.stdout[..]), (0, "third"), "{}", ended.stderr);
    user.fails("node start edge no/such/file", "no file");
    user.fails(&format!("node start nowhere {module}"), "no node \"nowhere\"");
    let trap = program("nodes-trap.wat", r#"(func (export "_start") unreachable)"#);
    let ended = user.run(&format!("node start edge {trap}"), "");
    assert_eq!(ended.code, 134, "{}", ended.stderr);
    assert!(ended.stderr.contains("unreachable"), "{}", ended.stderr);
}

/// Two nodes that run programs, and know each other.
fn moving_nodes(name: &str) -> [(User, Serving); 2] {
    moving_nodes_by(name, [Command::new(command()), Command::new(command())])
}

/// The same, by these commands.
fn moving_nodes_by(name: &str, commands: [Command; 2]) -> [(User, Serving); 2] {
    let users = [1, 2].map(|number| User::new(&format!("{name}-{number}")));
    let [by_one, by_two] = commands;
    let [one, two] = users;
    let listens = |user: User, by| {
        let serving = user.listen_by(by, "run --addr 127.0.0.1:0");
        (user, serving)
    };
    let [one, two] = [listens(one, by_one), listens(two, by_two)];
    for ((user, own), (other, at)) in [(&one, &two), (&two, &one)] {
        let (address, key, signer) = (&at.address, &other.node_key, &other.image_key);
        user.does(&format!("node trust other {key} --address {address} --run --signer {signer}"));
        user.does(&format!("node trust own {} --address {}", user.node_key, own.address));
    }
    [one, two]
}

#[test]
fn a_program_moves_between_nodes_and_its_client_follows() {
    let nodes = moving_nodes("moves");
    let [(one, _first), (two, _second)] = &nodes;
    let module = program("nodes-moving.wat", READER);
    let mut client = Command::new(command())
        .args(["node", "start", "--name", "reader", "own", &module])
        .env("XDG_CONFIG_HOME", &one.config)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    client.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let moved = one.run("migrate --report own/reader other", "");
    assert_eq!(moved.code, 0, "{}", moved.stderr);
    assert!(moved.stderr.contains("is at other: it rested"), "{}", moved.stderr);
    let list = one.does("node ps own");
    assert!(list.contains("is at other"), "{list}");
    assert!(two.does("node ps own").contains("runs"));
    let back = two.run("migrate --rounds 0 own/reader other", "");
    assert_eq!(back.code, 0, "{}", back.stderr);
    assert!(back.stderr.contains("it is lost if"), "{}", back.stderr);
    one.does("migrate own/reader other");
    one.fails("migrate own/reader other", "does not run here");
    one.fails("node reclaim own/reader", "it is known whose it is");
    one.fails("migrate own/none other", "no program \"none\"");
    client.stdin.take().unwrap().write_all(b"hello").unwrap();
    let output = client.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"hello"[..]));
}

#[test]
fn a_program_moves_to_where_the_system_tells_nothing_of_faults_and_back() {
    let commands = [Command::new(command()), confined("without-userfaultfd")];
    let nodes = moving_nodes_by("moves-unserved", commands);
    let [(one, _first), (two, _second)] = &nodes;
    let started = summing(one, "moves-unserved");
    let without_rounds = "migrate --rounds 0 own/summer other";
    for (user, words) in
        [(one, without_rounds), (two, without_rounds), (one, "migrate own/summer other")]
    {
        let moved = user.run(words, "");
        assert_eq!(moved.code, 0, "{words}: {}", moved.stderr);
    }
    let list = two.does("node ps own");
    assert!(list.contains("runs"), "{list}");
    let ended = started.finish("sum\n");
    assert_eq!((ended.code, &ended.stdout[..]), (0, &sum_of_words()[..]), "{}", ended.stderr);
}

#[test]
fn a_program_goes_on_before_its_pages_are_here() {
    let (_maker, runner, _serving, relay) = two_nodes("lazy", 2 << 20);
    let mut started = Started::new(&runner, "restore --store STORE --report maker/big");
    started.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(started.line(), "ready\n");
    assert!(relay.given.bytes.load(Ordering::Relaxed) < 3 << 20, "all else is held back");
    relay.limit(u64::MAX);
    let ended = started.finish("sum\n");
    assert_eq!((ended.code, &ended.stdout[..]), (0, &sum_of_words()[..]), "{}", ended.stderr);
    for said in ["programs could go on after", "1 connections", "background"] {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
    let came = |layer: &str| {
        let line = ended.stderr.lines().find(|line| line.trim_start().starts_with(layer));
        line.and_then(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).expect("a number")
    };
    let layers = ["fault", "certain", "recorded", "stride", "background"];
    assert!(layers.map(came).iter().sum::<u64>() > 1000, "{}", ended.stderr);

    // Forks, each of which sums up, have one copy of what comes.
    let before = relay.given.bytes.load(Ordering::Relaxed);
    let ended = runner.run("fork --store STORE --from maker/big -n 3", "");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout.matches(sum_of_words().trim()).count(), 3, "{}", ended.stdout);
    assert!(relay.given.bytes.load(Ordering::Relaxed) - before < 20 << 20);
}

#[test]
fn what_a_run_has_touched_is_asked_for_first_in_the_next_one() {
    let (_maker, runner, _serving, _relay) = two_nodes("recorded", u64::MAX);
    // Nothing asks for the groups that are not touched, so the image is not kept.
    let run = |ahead: &str| {
        let words = format!("restore --store STORE --report --fetch-ahead {ahead} maker/big");
        let ended = Started::new(&runner, &words).finish("go\nsum\n");
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert_eq!(ended.stdout, format!("ready\n{}", sum_of_words()));
        ["fault", "certain", "recorded", "stride", "background"].map(|layer| {
            let line = ended.stderr.lines().find(|line| line.trim_start().starts_with(layer));
            let asked = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            asked.expect("a number")
        })
    };
    let [faults, others @ ..] = run("recorded");
    assert!(faults > 1000, "{faults}");
    assert_eq!(others, [0; 4], "nothing is known yet, and all else is off");
    let [faults, certain, recorded, others @ ..] = run("certain,recorded");
    assert!(recorded > 900 && certain > 0, "{certain} and {recorded}");
    assert!(faults < 100, "{faults} are waited for that were waited for before");
    assert_eq!(others, [0; 2], "they are off");
}

#[test]
fn a_program_whose_node_is_lost_stops_with_an_error_and_in_time() {
    let (_maker, runner, _serving, relay) = two_nodes("lost", 2 << 20);
    let mut started =
        Started::new(&runner, "run --store STORE --node-timeout 500ms --from maker/big");
    started.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(started.line(), "ready\n");
    relay.cut();
    let began = Instant::now();
    let ended = started.finish("sum\n");
    assert!(began.elapsed() < Duration::from_secs(20), "it was patient for {:?}", began.elapsed());
    assert!(ended.code != 0 && ended.stdout.is_empty(), "{}, {}", ended.code, ended.stdout);
    for said in ["could not be reached again", "absent"] {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
    assert_eq!(runner.does("image --store STORE ls").lines().count(), 1, "nothing half-made stays");
}

#[test]
fn another_holder_is_asked_when_the_node_of_an_image_is_lost() {
    let (maker, runner, serving, relay) = two_nodes("holders", 2 << 20);
    let key = &maker.node_key;
    runner.does(&format!("node trust direct {key} --address {}", serving.address));
    let also = "--node-timeout 500ms --from-also direct";
    let mut started = Started::new(&runner, &format!("restore --store STORE {also} maker/big"));
    started.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(started.line(), "ready\n");
    relay.cut();
    let ended = started.finish("sum\n");
    assert_eq!((ended.code, &ended.stdout[..]), (0, &sum_of_words()[..]), "{}", ended.stderr);
    assert!(ended.stderr.contains("is asked from now on"), "{}", ended.stderr);

    // It is not there at all, and what its names stand for only it would know.
    let listed = maker.does("image --store STORE inspect big");
    let hash = listed.split_whitespace().find(|word| word.len() == 64).expect("its hash");
    let fresh = runner.store.with_file_name("holders-fresh").display().to_string();
    let _ = fs::remove_dir_all(&fresh);
    let restore = |image: &str| {
        Started::new(&runner, &format!("restore --store {fresh} {also} maker/{image}"))
            .finish("go\nsum\n")
    };
    let refused = restore("big");
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    let ended = restore(hash);
    let printed = format!("ready\n{}", sum_of_words());
    assert_eq!((ended.code, ended.stdout), (0, printed), "{}", ended.stderr);
    runner.fails("restore --store STORE --from-also nobody maker/other", "no node \"nobody\"");
    let again = "snapshot --store STORE --at time:1s --from-also direct --from maker/big";
    runner.fails(again, "leave out --from-also");
    let nowhere = "restore --store STORE --from-also file:///proc/self maker/other";
    runner.fails(nowhere, "cannot use the object store file:///proc/self");
}

#[test]
fn a_holder_that_an_image_names_is_asked_where_the_user_knows_it_and_no_other_is() {
    let (maker, runner, serving, relay) = two_nodes("named", 2 << 20);
    let keeper = User::new("named-keeper");
    let objects = keeper.store.with_file_name("objects");
    fs::create_dir_all(&objects).unwrap();
    let url = format!("file://{}", objects.display());
    maker.does(&format!("node trust keeper {} --serve", keeper.node_key));
    let module = program("nodes-named.wat", SUMMER);
    maker.does(&format!("snapshot --store STORE --holder keeper --holder {url} -o held {module}"));
    let listed = maker.does("image --store STORE inspect held");
    let shown = format!("node {}, known as keeper", keeper.node_key);
    assert!(listed.contains(&shown) && listed.contains(&url), "{listed}");
    let file = keeper.store.with_file_name("held").display().to_string();
    maker.does(&format!("image --store STORE push -o {file} held"));
    keeper.does(&format!("image --store STORE pull {file} --name any"));
    let keeping = keeper.serve();
    keeper.does(&format!("node trust runner {} --serve", runner.node_key));
    let (key, address) = (&keeper.node_key, &keeping.address);
    runner.does(&format!("node trust keeper {key} --address {address}"));

    let words = "restore --report --node-timeout 500ms";
    let started = |store: &str, relay: &Relay| {
        let words = format!("{words} --store {store} maker/held");
        let mut started = Started::new(&runner, &words);
        started.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        assert_eq!(started.line(), "ready\n");
        relay.cut();
        started.finish("sum\n")
    };
    let ended = started("STORE", &relay);
    assert_eq!((ended.code, &ended.stdout[..]), (0, &sum_of_words()[..]), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("node {address} is asked from now on")));
    // The report names them.
    let names = format!("it names node {key}, known as keeper\n");
    assert!(ended.stderr.contains(&names), "{}", ended.stderr);
    let unasked = format!("it names the object store {url}, which is not asked");
    assert!(ended.stderr.contains(&unasked), "{}", ended.stderr);

    // Where it is the image does not say.
    runner.does("node forget keeper");
    let relay = Relay::new(&serving.address, 2 << 20);
    let (node, signer) = (&maker.node_key, &maker.image_key);
    runner.does(&format!("node trust maker {node} --address {} --signer {signer}", relay.address));
    let fresh = runner.store.with_file_name("named-fresh").display().to_string();
    let _ = fs::remove_dir_all(&fresh);
    let ended = started(&fresh, &relay);
    assert!(ended.code != 0 && ended.stdout.is_empty(), "{}, {}", ended.code, ended.stdout);
    for said in [format!("it names node {key}, which is not asked: where it is"), unasked] {
        assert!(ended.stderr.contains(&said), "{said}: {}", ended.stderr);
    }
    assert_eq!(fs::read_dir(&objects).unwrap().count(), 0, "it was not even looked at");
    maker.fails(&format!("snapshot --store STORE --holder nobody {module}"), "no node \"nobody\"");
    let twice = format!("snapshot --store STORE --holder {url} --holder {url}/ {module}");
    maker.fails(&twice, "named twice");
}

#[test]
fn where_the_system_tells_nothing_of_faults_an_image_comes_first_and_doctor_says_so() {
    let how = "without-userfaultfd";
    let doctor = confined(how).arg("doctor").output().expect("it starts");
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    let line = doctor.lines().find(|line| line.contains("userfaultfd SIGBUS")).expect("a line");
    assert!(line.contains("limited") && line.contains("fetched whole"), "{line}");

    let (_maker, runner, _serving, relay) = two_nodes("unserved", u64::MAX);
    let mut started =
        Started::of(confined(how), &runner, "restore --store STORE --report maker/big");
    started.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(started.line(), "ready\n");
    assert!(relay.given.bytes.load(Ordering::Relaxed) > 16 << 20, "all of it is here");
    let ended = started.finish("sum\n");
    assert_eq!((ended.code, &ended.stdout[..]), (0, &sum_of_words()[..]), "{}", ended.stderr);
    assert!(ended.stderr.contains("all of it is in the store"), "{}", ended.stderr);
    assert_eq!(runner.does("image --store STORE ls").lines().count(), 2, "and is kept");
}

#[test]
fn nodes_do_all_of_it_for_users_without_rights() {
    let tests = [
        "a_program_goes_on_at_another_node_once_each_trusts_what_it_has_to",
        "nodes_that_are_reached_by_quic_do_the_same",
        "a_node_runs_programs_for_those_who_may_have_them_run",
        "a_program_moves_between_nodes_and_its_client_follows",
        "a_program_goes_on_before_its_pages_are_here",
        "what_a_run_has_touched_is_asked_for_first_in_the_next_one",
        "a_program_whose_node_is_lost_stops_with_an_error_and_in_time",
        "where_the_system_tells_nothing_of_faults_an_image_comes_first_and_doctor_says_so",
        "a_program_moves_to_where_the_system_tells_nothing_of_faults_and_back",
        "a_node_that_is_not_known_has_an_image_by_a_token",
        "a_program_whose_pages_are_in_an_object_store_outlives_the_end_of_its_source",
    ];
    pass_without_rights("nodes", &tests);
}

/// Two nodes that know each other, the second one the first by a line that carries 2 MiB, and an object
/// store of both.
struct Placed {
    users: [User; 2],
    nodes: [Option<Serving>; 2],
    relay: Option<Relay>,
    url: String,
}

impl Placed {
    fn new(name: &str) -> Self {
        let users = [1, 2].map(|number| User::new(&format!("{name}-{number}")));
        let place = users[0].config.parent().unwrap().join("place");
        fs::create_dir(&place).unwrap();
        let url = format!("file://{}", place.display());
        let mut placed = Self { users, nodes: [None, None], relay: None, url };
        placed.start(0);
        placed.start(1);
        placed
    }

    /// Starts a node, anew if it was, and has both know where it is.
    fn start(&mut self, which: usize) {
        let words = format!("run --addr 127.0.0.1:0 --node-timeout 5s --place {}/", self.url);
        self.nodes[which] = Some(self.users[which].listen_with(&words));
        let (user, other) = (&self.users[which], &self.users[1 - which]);
        let own = &self.nodes[which].as_ref().unwrap().address;
        user.does(&format!("node trust own {} --address {own}", user.node_key));
        let at = match which {
            0 => &self.relay.insert(Relay::new(own, 2 << 20)).address,
            _ => own,
        };
        let (key, signer) = (&user.node_key, &user.image_key);
        other.does(&format!("node trust other {key} --address {at} --run --signer {signer}"));
    }

    /// What is in a folder of the object store.
    fn objects(&self, folder: &str) -> usize {
        let path = self.url.strip_prefix("file://").unwrap();
        fs::read_dir(Path::new(path).join(folder)).map_or(0, |files| files.count())
    }

    /// The image has no name any more, and nobody uses it: so it goes after an hour.
    fn wait_until_nothing_is_kept(&self) {
        let begun = Instant::now();
        let folders = ["names", "leases/images", "leases/code", "clock"];
        while folders.map(|folder| self.objects(folder)) != [0; 4] {
            let found = folders.map(|folder| (folder, self.objects(folder)));
            assert!(begun.elapsed() < Duration::from_secs(120), "something stays: {found:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A program that has said that it is ready.
fn summing(user: &User, name: &str) -> Started {
    let module = program(&format!("nodes-{name}.wat"), SUMMER);
    let mut started = Started::new(user, &format!("node start --name summer own {module}"));
    started.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(started.line(), "ready\n");
    started
}

#[test]
fn a_program_whose_pages_are_in_an_object_store_outlives_the_end_of_its_source() {
    let mut placed = Placed::new("placed");
    let started = summing(&placed.users[0], "placed");
    let moved = placed.users[0].run("migrate --rounds 0 own/summer other", "");
    assert_eq!((moved.code, &moved.stderr[..]), (0, ""), "nothing is left to be lost");
    assert_eq!((placed.objects("images"), placed.objects("names")), (1, 1));
    let begun = Instant::now();
    while !placed.users[1].does("node ps own").contains("yes") {
        assert!(begun.elapsed() < Duration::from_secs(60), "its client does not follow");
        thread::sleep(Duration::from_millis(50));
    }
    placed.nodes[0] = None;
    placed.relay.as_ref().unwrap().cut();
    let ended = started.finish("sum\n");
    assert_eq!((ended.code, &ended.stdout[..]), (0, &sum_of_words()[..]), "{}", ended.stderr);
    // Its source, started anew, asks who needs that.
    placed.start(0);
    placed.wait_until_nothing_is_kept();
}

#[test]
fn when_the_target_is_killed_nothing_half_made_stays_there_or_in_the_object_store() {
    let mut placed = Placed::new("placed-killed");
    let _started = summing(&placed.users[0], "placed-killed");
    placed.users[0].does("migrate --rounds 0 own/summer other");
    assert_eq!((placed.objects("images"), placed.objects("names")), (1, 1));
    placed.nodes[1] = None;
    placed.start(1);
    let list = placed.users[1].does("node ps own");
    assert!(!list.contains("runs"), "it is lost with its node: {list}");
    placed.wait_until_nothing_is_kept();
    let images = placed.users[1].does("image --store STORE ls");
    assert_eq!(images.lines().count(), 1, "{images}");
}

#[test]
fn what_is_wrong_about_an_object_store_is_said_before_it_is_needed() {
    let placed = Placed::new("placed-wrong");
    let user = &placed.users[0];
    let refused = |url: &str, code: i32, complaint: &str| {
        let words = format!("node run --addr 127.0.0.1:0 --store STORE --place {url}");
        let ended = user.run(&words, "");
        assert_eq!(ended.code, code, "{url}: {}", ended.stderr);
        assert!(ended.stderr.contains(complaint), "{url}: {}", ended.stderr);
        assert!(!ended.stderr.contains("secret"), "{url}: {}", ended.stderr);
    };
    refused("memory:///", 2, "no other process has");
    refused("gopher://host/", 2, "use file:///DIRECTORY");
    refused("nothing", 2, "use file:///DIRECTORY");
    refused(&format!("{}-nowhere", placed.url), 1, "-nowhere: could not open");
    refused("file:///proc/self", 1, "cannot use the object store file:///proc/self: could not");
    refused("file:///proc/self/status", 1, "not a directory");

    let started = summing(user, "placed-wrong");
    let other = "migrate --rounds 0 --second file:///tmp own/summer other";
    user.fails(other, "was not started with the object store \"file:///tmp\"");
    user.fails("migrate --second nobody own/summer other", "no node \"nobody\" is known");
    let second = "node run --addr 127.0.0.1:0 --store STORE --second nobody";
    user.fails(second, "no node \"nobody\" is known");
    let ended = user.run("migrate --second memory:/// own/summer other", "");
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    let moved = user.run("migrate --rounds 0 --second none own/summer other", "");
    assert_eq!(moved.code, 0, "{}", moved.stderr);
    assert!(moved.stderr.contains("it is lost if"), "{}", moved.stderr);
    assert_eq!(placed.objects("images"), 0);
    placed.relay.as_ref().unwrap().limit(u64::MAX);
    let ended = started.finish("sum\n");
    assert_eq!((ended.code, &ended.stdout[..]), (0, &sum_of_words()[..]), "{}", ended.stderr);
}

#[test]
fn an_object_store_in_which_a_user_may_not_write_is_refused() {
    if !is_root() {
        println!("NOT TESTED: nothing that this user makes is another one's");
        return;
    }
    let user = Nobody::new("placed");
    // It is not this user's.
    let place = user.scratch.join("place");
    fs::create_dir(&place).unwrap();
    let said = |words: &[&str]| {
        let ended = user.command(&user.command).args(words).output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (code, complaint) = said(&["node", "init"]);
    assert_eq!(code, Some(0), "{complaint}");
    let url = format!("file://{}", place.display());
    let words = ["node", "run", "--addr", "127.0.0.1:0", "--place", &url];
    let (code, complaint) = said(&words);
    assert_eq!(code, Some(1), "{complaint}");
    assert!(complaint.contains("cannot use the object store file:///"), "{complaint}");
    assert!(complaint.contains("ermission denied"), "{complaint}");
}

#[test]
fn what_is_wrong_about_a_node_is_said_before_anything_changes() {
    let user = User::new("careful");
    let key = &user.node_key;
    user.fails(&format!("node trust a/b {key} --serve"), "can be no name");
    user.fails(&format!("node trust a {key} --address here"), "give HOST:PORT");
    let ended = user.run(&format!("node trust a {key}"), "");
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    let ended = user.run("node trust a 12 --serve", "");
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert_eq!(user.does("node ls").lines().count(), 1);
    fs::write(user.config.join("pagefork/nodes"), "a b c\n").unwrap();
    user.fails("node ls", "line 1");
    user.fails("node serve --addr 127.0.0.1:0 --store STORE", "line 1");
}
