//! A headless Chromium, controlled over its DevTools protocol through two pipes. Messages are JSON texts, each ended by
//! a zero byte.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;

pub struct Browser {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    last: u64,
    session: Option<String>,
    events: Vec<Value>,
    profile: TempDir,
}

impl Browser {
    /// Starts a browser with an empty profile and one page. Without Chromium the test fails. `./quire setup` installs
    /// it.
    pub fn start() -> Browser {
        let profile = TempDir::new().unwrap();
        let log = File::create(profile.path().join("log")).unwrap();
        // The protocol uses the descriptors 3 and 4 for its pipes.
        let mut command = Command::new("sh");
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >&2", "sh"]);
        command.args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        command.args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--mute-audio",
        ]);
        command.args(["--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb"]);
        command.arg(format!("--user-data-dir={}", profile.path().join("profile").display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Browser { child, to, from, last: 0, session: None, events: Vec::new(), profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol and returns the answer. Events that arrive before the answer are kept in
    /// `events`.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        let sent = self.to.as_mut().unwrap().write_all(format!("{message}\0").as_bytes());
        if let Err(error) = sent {
            panic!("Chromium is gone ({error}): {}", self.log());
        }
        loop {
            let message = self.read();
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        if bytes.pop() != Some(0) {
            panic!("Chromium ended; is it installed (./quire setup)? {}", self.log());
        }
        serde_json::from_slice(&bytes).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.profile.path().join("log")).unwrap_or_default()
    }

    /// Writes a page to a file, loads it, and drops the events of earlier pages.
    pub fn open(&mut self, page: &str) {
        let file: PathBuf = self.profile.path().join("report.html");
        std::fs::write(&file, page).unwrap();
        self.events.clear();
        self.call("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        while !self.events.iter().any(|e| e["method"] == "Page.loadEventFired") {
            let event = self.read();
            self.events.push(event);
        }
    }

    /// Evaluates an expression in the page. Returns its value.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Clicks on the element that the expression `element` returns.
    pub fn click(&mut self, element: &str) {
        let at = self.value(&format!(
            "(() => {{ const e = {element}; e.scrollIntoView({{block: 'center', behavior: 'instant'}}); \
             const r = e.getClientRects()[0]; return [r.left + Math.min(r.width / 2, 40), r.top + r.height / 2]; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Sets the window's width, and the colour scheme that the system prefers.
    pub fn look(&mut self, width: u32, scheme: &str) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media);
    }

    /// The page as it is printed, as a PDF file.
    pub fn print(&mut self) -> Vec<u8> {
        let parameters = json!({"printBackground": false, "preferCSSPageSize": true});
        let answer = self.call("Page.printToPDF", parameters);
        BASE64_STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
    }

    /// The errors of the page: exceptions, console messages, failed loads, and requests for resources outside the page.
    pub fn complaints(&mut self) -> Vec<String> {
        // The answer to this call arrives after all earlier events.
        self.value("new Promise(r => requestAnimationFrame(() => r(1)))");
        let wrong = |e: &&Value| match e["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" | "Network.loadingFailed" => true,
            "Runtime.consoleAPICalled" => true,
            "Log.entryAdded" => e["params"]["entry"]["level"] != "verbose",
            "Network.requestWillBeSent" => {
                let url = e["params"]["request"]["url"].as_str().unwrap_or_default();
                !url.starts_with("file://") && !url.starts_with("data:")
            }
            _ => false,
        };
        self.events.iter().filter(wrong).map(Value::to_string).collect()
    }

    /// Writes pictures of the whole page, if `$QUIRE_SHOTS` names a directory for them.
    pub fn shoot(&mut self, name: &str) {
        let Some(directory) = std::env::var_os("QUIRE_SHOTS") else { return };
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let mut top = 0.0;
        let (mut part, height) = (0, size["height"].as_f64().unwrap());
        while top < height {
            let clip =
                json!({"x": 0, "y": top, "width": size["width"], "height": (height - top).min(1800.0), "scale": 1});
            let parameters = json!({"captureBeyondViewport": true, "clip": clip});
            let picture = self.call("Page.captureScreenshot", parameters)["data"].clone();
            let bytes = BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap();
            std::fs::write(Path::new(&directory).join(format!("{name}-{part}.png")), bytes).unwrap();
            (top, part) = (top + 1800.0, part + 1);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser and its child processes end when its pipes are closed.
        self.to = None;
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
