//! Layers hold: a file names only its own layer or lower ones. The two upward edges are named here, and only there may they stand.
//! What else the sources must keep to and the compiler does not check: where `unsafe` stands, what vector code is made of.
use std::fs;
use std::path::Path;

const LAYERS: [&[&str]; 8] =
    [&["dtype", "error"], &["alloc", "layout", "storage", "array"], &["kernels"], &["tape"], &["stow"], &["ops"], &["engine"], &["py"]];
/// (file, what it may name upward): traits cannot express these, all are under `cfg(feature = "python")`.
const UPWARD: [(&str, &str); 3] =
    [("src/ops/macros.rs", "py::entry::expose"), ("src/tape/tensor.rs", "py::Wrapper"), ("src/tape/saved.rs", "py::Keeper")];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|l| l.contains(&module))
}
fn visit(dir: &Path, f: &mut dyn FnMut(&Path)) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for p in entries {
        if p.is_dir() {
            visit(&p, f);
        } else if p.extension().is_some_and(|e| e == "rs") {
            f(&p);
        }
    }
}
#[test]
fn no_file_names_a_higher_layer() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    visit(Path::new("src"), &mut |path| {
        let name = path.to_string_lossy().replace('\\', "/");
        let module = name.trim_start_matches("src/").split(['/', '.']).next().unwrap().to_owned();
        let Some(own) = layer_of(&module) else { return };
        let text = fs::read_to_string(path).unwrap();
        for (i, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap();
            for (at, _) in code.match_indices("crate::") {
                let rest = &code[at + "crate::".len()..];
                let first: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let names: Vec<String> = if let Some(list) = rest.strip_prefix('{') {
                    list.split(',').map(|s| s.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
                } else {
                    vec![first]
                };
                for n in names {
                    seen += 1;
                    if layer_of(&n).is_some_and(|l| l > own) && !UPWARD.iter().any(|(f, what)| name == *f && rest.starts_with(what)) {
                        wrong.push(format!("{name}:{}: layer {own} names crate::{n}", i + 1));
                    }
                }
            }
        }
    });
    assert!(seen > 300, "the test reads the sources");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
#[test]
fn unsafe_code_stands_only_where_it_is_allowed() {
    let allowed = [
        "alloc",
        "storage",
        "array",
        "kernels/simd",
        "kernels/pointwise",
        "kernels/matmul",
        "kernels/conv",
        "py/call",
        "py/convert",
        "py/tensor",
        "py/node",
        "py/frame",
        "py/named",
        "py/size",
        "py/number",
    ];
    visit(Path::new("src"), &mut |path| {
        let name = path.to_string_lossy().replace('\\', "/");
        let text = fs::read_to_string(path).unwrap();
        let opens = text.lines().any(|l| l.trim() == "#![allow(unsafe_code)]");
        let short = name.trim_start_matches("src/").trim_end_matches(".rs");
        assert!(!opens || allowed.contains(&short), "{name} allows unsafe code");
    });
}
/// The text between a brace and its partner; `from` stands at the brace or before it. Comments are gone; no brace stands in a string.
fn block(text: &str, from: usize) -> &str {
    let open = from + text[from..].find('{').unwrap();
    let mut depth = 0;
    for (i, c) in text[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[open..=open + i];
        }
    }
    panic!("a brace without a partner");
}
/// A closure in code: a bar that no operand stands before.
fn closure(code: &str) -> Option<&str> {
    let bars = code.match_indices('|').map(|(at, _)| at);
    let at = bars.into_iter().find(|&at| {
        let before = code[..at].trim_end();
        before.ends_with(['(', ',', '=', '{', ';', '&']) || before.ends_with("move") || before.ends_with("return")
    })?;
    code[at..].lines().next()
}
#[test]
fn vector_code_has_no_closures() {
    let (mut wrong, mut bodies, mut helpers) = (Vec::new(), 0, 0);
    visit(Path::new("src/kernels"), &mut |path| {
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let code: String = text.lines().flat_map(|l| [l.split("//").next().unwrap(), "\n"]).collect();
        let mut check = |what: &str| {
            if let Some(line) = closure(what) {
                wrong.push(format!("{}: {line}", path.display()));
            }
        };
        for (at, _) in code.match_indices("simd! {") {
            bodies += 1;
            check(block(&code, at));
        }
        // What vector bodies call: functions that know whether multiplications and additions are fused, or that work on lanes.
        for (at, _) in code.match_indices("#[inline(always)]") {
            let function = block(&code, at);
            let head = code[at..].split('{').next().unwrap();
            let lanes = ["V: Lanes", "T: Lane", "T: Real"].iter().any(|bound| head.contains(bound)) && !head.contains("self");
            if lanes || head.contains("const F: bool") || function.contains("<FMA") {
                helpers += 1;
                check(function);
            }
        }
    });
    assert!(bodies > 35 && helpers > 80, "the test reads the sources: {bodies} bodies, {helpers} helpers");
    assert!(wrong.is_empty(), "plain loops instead of closures (kernels/simd.rs):\n{}", wrong.join("\n"));
    assert!(closure("a.map(|x| x)").is_some() && closure("let f = |x| x").is_some() && closure("a | b || c").is_none());
}
