//! The backward walk: order, accumulation, un-broadcasting, hooks, `retain_graph`, `create_graph`.
//!
//! A call walks the graph twice. First it numbers what is reachable and counts the edges into each vertex; then it runs vertices whose
//! edges have all delivered, the latest recorded first, leaves as soon as they can. All state belongs to the call (a `Task` on the
//! thread's stack while it runs, rule 6): several threads may walk one graph, calls nest inside hooks, and an error leaves nothing behind.
//! The roots keep every node alive for the length of the call, so vertices borrow them.
use crate::array::Array;
use crate::dtype::Scalar;
use crate::error::{Error, Result, bail, err};
use crate::kernels::{Out, pointwise, table};
use crate::layout::is_dense;
use crate::ops;
use crate::tape::mode::{self, GradGuard};
use crate::tape::node::Meta;
use crate::tape::record::tracing;
pub use crate::tape::task::{Ends, Task, at_end, current_node, current_task, queue_callback, with_task};
use crate::tape::task::{NEXT_TASK, Running};
use crate::tape::{Cx, Edge, Held, Node, Tensor, host};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// What a backward call is asked to do.
pub struct Request {
    /// Where to start, with the gradient given there (None: ones, for a single element).
    pub roots: Vec<(Tensor, Option<Tensor>)>,
    /// Starts that are edges of the graph rather than tensors.
    pub edges: Vec<(Edge, Tensor)>,
    pub retain_graph: bool,
    pub create_graph: bool,
    /// Only what leads to these; None: every leaf.
    pub inputs: Option<Vec<Edge>>,
    /// With `accumulate`: inputs that are no leaves, whose `.grad` is to be set, by number.
    pub keepers: Vec<(u32, Tensor)>,
    /// Into `.grad` of the inputs (backward) rather than as a result (grad).
    pub accumulate: bool,
    pub allow_unused: bool,
}

#[derive(Clone, Copy)]
enum At<'a> {
    Node(&'a Arc<Node>),
    Leaf(&'a Held),
}
impl At<'_> {
    fn address(&self) -> usize {
        match self {
            At::Node(n) => Arc::as_ptr(n) as usize,
            At::Leaf(h) => h.tensor().id(),
        }
    }
    fn mark(&self) -> &AtomicU32 {
        match self {
            At::Node(n) => &n.mark,
            At::Leaf(h) => &h.tensor().imp().mark,
        }
    }
    /// How many gradients may come here.
    fn outputs(&self) -> usize {
        match self {
            At::Node(n) => n.outputs(),
            At::Leaf(_) => 1,
        }
    }
}
#[derive(Clone, Copy)]
struct Vertex<'a> {
    at: At<'a>,
    address: usize,
    /// Edges that have not delivered yet.
    waits: u32,
    /// Where the numbers of the vertices that its edges lead to begin in `Numbered::targets`.
    first: u32,
    /// Where the gradients of its outputs begin in `Walk::grads`.
    out: u32,
    /// Whether it runs (it leads to an input), and whether its gradient is asked for.
    needed: bool,
    wanted: bool,
}
impl Vertex<'_> {
    /// Does anybody want a gradient to come here?
    fn asked(&self) -> bool {
        self.needed || self.wanted
    }
}
/// What is reachable from the roots.
#[derive(Default)]
struct Numbered<'a> {
    graph: Vec<Vertex<'a>>,
    /// For the edges of each vertex in turn, the vertex that they lead to, or `NOWHERE`.
    targets: Vec<u32>,
    /// The vertices, with those they lead to first.
    order: Vec<u32>,
    /// The vertices of the roots, and of the edges that were asked for besides: `NOWHERE` for one that is not reachable.
    roots: Vec<u32>,
    others: Vec<u32>,
    /// Outputs of all vertices together.
    outputs: u32,
}
const NOWHERE: u32 = u32::MAX;
fn vertex_of(e: &Edge) -> Option<At<'_>> {
    match e {
        Edge::None => None,
        Edge::Node(n, _) => Some(At::Node(n)),
        Edge::Leaf(h) => Some(At::Leaf(h)),
    }
}
fn output_of(e: &Edge) -> u32 {
    if let Edge::Node(_, nr) = e { *nr } else { 0 }
}

/// Runs a backward call. The result has one gradient per input (for `accumulate` it is empty).
pub fn run(r: Request) -> Result<Vec<Option<Tensor>>> {
    let _mode = GradGuard::set(r.create_graph);
    let keep = r.retain_graph;
    let mut starts: Vec<(Edge, Tensor)> = Vec::with_capacity(r.roots.len() + r.edges.len());
    for (i, (t, g)) in r.roots.into_iter().enumerate() {
        starts.push((root_edge(&t, i)?, root_grad(&t, g)?));
    }
    starts.extend(r.edges);
    if let Some(inputs) = &r.inputs
        && let Some(i) = inputs.iter().position(Edge::is_none)
    {
        bail!(Runtime, "One of the differentiated Tensors does not require grad (input {i})");
    }
    let (edges, mut first): (Vec<Edge>, Vec<Option<Tensor>>) = starts.into_iter().map(|(e, g)| (e, Some(g))).unzip();
    for e in edges.iter().chain(r.inputs.iter().flatten()) {
        if let Edge::Node(n, nr) = e
            && *nr as usize >= n.outputs()
        {
            bail!(Runtime, "{} has {} outputs, there is no output {nr}", n.name(), n.outputs());
        }
    }
    let edges = Rc::new(edges);

    let inputs = r.inputs.as_deref();
    let Numbered { mut graph, targets, order, roots, others, outputs } = number(&edges, inputs.unwrap_or_default());
    let mut wanted = Vec::new();
    let needed = inputs.map(|inputs| mark(&mut graph, &targets, &order, inputs, &others, r.accumulate, &mut wanted));
    let id = NEXT_TASK.fetch_add(1, Relaxed);
    let node = Rc::new(Cell::new(None));
    let _running = Running::start(Task {
        id,
        keep,
        node: node.clone(),
        needed: needed.map(Rc::new),
        roots: edges.clone(),
        graph: None,
        callbacks: Vec::new(),
        state: FxHashMap::default(),
        ends: Vec::new(),
    });
    let mut results: Vec<Option<Tensor>> = if r.accumulate { Vec::new() } else { vec![None; r.inputs.as_ref().map_or(0, Vec::len)] };
    let mut walk = Walk {
        graph,
        targets,
        grads: (0..outputs).map(|_| None).collect(),
        ready: Ready::default(),
        node,
        keep,
        create: r.create_graph,
        spare: !r.create_graph && !tracing(),
        accumulate: r.accumulate,
        wanted,
        keepers: &r.keepers,
        results: &mut results,
    };
    // The roots deliver first.
    for ((e, g), v) in edges.iter().zip(&mut first).zip(roots) {
        if v != NOWHERE {
            walk.deliver(v, output_of(e), g.take().expect("each root delivers once"))?;
            walk.arrived(v);
        }
    }
    walk.run()?;
    if !keep && r.inputs.is_some() {
        free_rest(&walk.graph, &walk.targets, &order)?;
    }
    drop(walk);
    while let Some(f) = with_task(|t| if t.callbacks.is_empty() { None } else { Some(t.callbacks.remove(0)) }).flatten() {
        f()?;
    }
    if !r.accumulate && !r.allow_unused && r.inputs.is_some() && results.iter().any(Option::is_none) {
        bail!(
            Runtime,
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is the desired behavior."
        );
    }
    Ok(results)
}
fn root_edge(t: &Tensor, i: usize) -> Result<Edge> {
    match t.edge() {
        Edge::None => bail!(Runtime, "element {i} of tensors does not require grad and does not have a grad_fn"),
        e => Ok(e),
    }
}
fn root_grad(t: &Tensor, g: Option<Tensor>) -> Result<Tensor> {
    let (shape, dtype) = t.look(|a| (a.shape, a.dtype));
    match g {
        Some(g) => {
            let given = g.shape();
            if given != shape {
                bail!(Runtime, "Mismatch in shape: the gradient given has a shape of {given:?} and the output has a shape of {shape:?}");
            }
            if g.dtype() == dtype { Ok(g) } else { ops::to_dtype(&g, dtype) }
        }
        None if shape.numel() == 1 && mode::dispatching() => mode::no_grad(|| ops::ones_like(t, None, None, None, None, None, false)),
        None if shape.numel() == 1 => Ok(Tensor::new(Array::full(shape, dtype, Scalar::Float(1.0))?)),
        None => bail!(
            Runtime,
            "grad can be implicitly created only for scalar outputs; this one has shape {shape:?}: give backward() a gradient of that shape"
        ),
    }
}
fn priority(at: &At<'_>) -> u64 {
    match at {
        At::Node(n) => n.seq(),
        At::Leaf(_) => u64::MAX,
    }
}

/// Held while a walk numbers, so that the marks on nodes and leaves are its own. Nothing else is done meanwhile (rule 4).
static NUMBERING: Mutex<()> = Mutex::new(());
/// Numbers everything reachable and counts the edges into each vertex; finds the vertices of `others`.
fn number<'a>(roots: &'a [Edge], others: &[Edge]) -> Numbered<'a> {
    let mut all = Numbered::default();
    let mut stack: Vec<(u32, u32)> = Vec::new();
    let _alone = NUMBERING.lock();
    for root in roots {
        let v = vertex_of(root).map_or(NOWHERE, |at| all.reach(at, &mut stack));
        all.roots.push(v);
        'next: while let Some((v, from)) = stack.pop() {
            let Vertex { at: At::Node(n), first, .. } = all.graph[v as usize] else { continue };
            for (k, input) in n.inputs.iter().enumerate().skip(from as usize) {
                let Some(at) = vertex_of(&input.edge) else { continue };
                let depth = stack.len();
                let to = all.reach(at, &mut stack);
                all.targets[first as usize + k] = to;
                if stack.len() > depth {
                    // `v` goes on after the new vertex
                    stack[depth] = (v, k as u32 + 1);
                    stack.push((to, 0));
                    continue 'next;
                }
            }
            all.order.push(v);
        }
    }
    all.others = others.iter().map(|e| vertex_of(e).and_then(|at| all.known(at)).unwrap_or(NOWHERE)).collect();
    all
}
impl<'a> Numbered<'a> {
    /// The number of a vertex. Its mark says, if it was left by this walk: then the vertex of that number is the one.
    #[inline]
    fn known(&self, at: At<'_>) -> Option<u32> {
        let v = at.mark().load(Relaxed);
        self.graph.get(v as usize).is_some_and(|x| x.address == at.address()).then_some(v)
    }
    /// Counts one edge into the vertex; pushes it on the stack if it is a node and new.
    #[inline]
    fn reach(&mut self, at: At<'a>, stack: &mut Vec<(u32, u32)>) -> u32 {
        if let Some(v) = self.known(at) {
            self.graph[v as usize].waits += 1;
            return v;
        }
        let v = self.graph.len() as u32;
        at.mark().store(v, Relaxed);
        let first = self.targets.len() as u32;
        self.graph.push(Vertex { at, address: at.address(), waits: 1, first, out: self.outputs, needed: true, wanted: false });
        self.outputs += at.outputs() as u32;
        match at {
            At::Node(n) => {
                for _ in 0..n.inputs.len() {
                    self.targets.push(NOWHERE);
                }
                stack.push((v, 0));
            }
            At::Leaf(_) => self.order.push(v),
        }
        v
    }
}
/// The vertices whose edges have all delivered. The one recorded last comes first, leaves before all.
#[derive(Default)]
struct Ready {
    /// The first of all; apart from the others, since in a chain there are none.
    next: Option<(u64, u32)>,
    rest: BinaryHeap<(u64, u32)>,
}
impl Ready {
    #[inline]
    fn push(&mut self, new: (u64, u32)) {
        match self.next {
            Some(next) if new < next => self.rest.push(new),
            _ => {
                if let Some(old) = self.next.replace(new) {
                    self.rest.push(old);
                }
            }
        }
    }
    #[inline]
    fn pop(&mut self) -> Option<u32> {
        let (_, v) = self.next?;
        self.next = if self.rest.is_empty() { None } else { self.rest.pop() };
        Some(v)
    }
}
/// What the innermost call on this thread runs, in its order; None outside of one.
pub fn execution_order() -> Option<Vec<Arc<Node>>> {
    let (edges, needed) = with_task(|t| (t.roots.clone(), t.needed.clone()))?;
    let Numbered { mut graph, targets, roots, .. } = number(&edges, &[]);
    let (mut ready, mut out) = (Ready::default(), Vec::new());
    let arrive = |v: u32, graph: &mut Vec<Vertex<'_>>, ready: &mut Ready| {
        if v != NOWHERE {
            let vertex = &mut graph[v as usize];
            vertex.waits -= 1;
            if vertex.waits == 0 {
                ready.push((priority(&vertex.at), v));
            }
        }
    };
    roots.iter().for_each(|&v| arrive(v, &mut graph, &mut ready));
    while let Some(v) = ready.pop() {
        let Vertex { at, address, first, .. } = graph[v as usize];
        if needed.as_ref().is_some_and(|n| !n.contains(&address)) {
            continue;
        }
        match at {
            At::Leaf(h) => out.push(accumulate_node(h)),
            At::Node(n) => {
                out.push(n.clone());
                targets[first as usize..][..n.inputs.len()].iter().for_each(|&v| arrive(v, &mut graph, &mut ready));
            }
        }
    }
    Some(out)
}
/// A gradient that is asked for: of output `nr` of vertex `v`, for input `i` of the call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    v: u32,
    i: u32,
    nr: u32,
}
/// Marks what leads to the inputs, and what is asked of whom. Returns the addresses of what will run. `at`: the vertices of the inputs.
fn mark(
    graph: &mut [Vertex<'_>],
    targets: &[u32],
    order: &[u32],
    inputs: &[Edge],
    at: &[u32],
    accumulate: bool,
    wanted: &mut Vec<Asked>,
) -> FxHashSet<usize> {
    graph.iter_mut().for_each(|v| v.needed = false);
    for (i, (e, &v)) in inputs.iter().zip(at).enumerate() {
        if v == NOWHERE {
            continue;
        }
        let vertex = &mut graph[v as usize];
        if accumulate && matches!(e, Edge::Leaf(_)) {
            // backward(inputs=): a leaf accumulates, another tensor keeps its gradient as `retain_grad` does
            vertex.needed = true;
        } else {
            vertex.wanted = true;
            wanted.push(Asked { v, i: i as u32, nr: output_of(e) });
        }
    }
    wanted.sort_unstable();
    for &v in order {
        let vertex = &graph[v as usize];
        let leads = match vertex.at {
            At::Leaf(_) => vertex.asked(),
            At::Node(n) => {
                let to = &targets[vertex.first as usize..][..n.inputs.len()];
                to.iter().any(|&w| w != NOWHERE && graph[w as usize].asked())
            }
        };
        graph[v as usize].needed = leads;
    }
    graph.iter().filter(|v| v.asked()).map(|v| v.address).collect()
}
/// A call that frees its graph frees the side paths that it did not run, where nobody else can run them either: each owner of such a
/// node is an edge of a node whose values are gone. Where somebody can, what policies hold besides a living tensor goes.
fn free_rest(graph: &[Vertex<'_>], targets: &[u32], order: &[u32]) -> Result<()> {
    let mut from_gone = vec![0usize; graph.len()];
    for &v in order.iter().rev() {
        let Vertex { at: At::Node(n), first, .. } = graph[v as usize] else { continue };
        let orphan = Arc::strong_count(n) == from_gone[v as usize];
        if orphan {
            n.release();
        } else if !n.is_freed() {
            n.keep_living_outputs()?;
        }
        if orphan || n.is_freed() {
            for &to in targets[first as usize..][..n.inputs.len()].iter().filter(|&&to| to != NOWHERE) {
                from_gone[to as usize] += 1;
            }
        }
    }
    Ok(())
}
/// Is this the only holder of the tensor and its bytes, so that they may be written?
fn owned_alone(t: &Tensor) -> bool {
    t.owners() == 1
        && !t.is_view()
        && t.look(|a| !a.number && Arc::strong_count(a.storage()) == 1 && !a.storage().is_foreign() && is_dense(&a.shape, &a.strides))
}
/// The sum of two gradients, into the first one's memory where nobody else sees it.
fn sum(old: Tensor, g: &Tensor) -> Result<Tensor> {
    let now = mode::now();
    if !now.grad_enabled() && !now.dispatching() {
        if added(&old, g) {
            return Ok(old);
        }
        if owned_alone(&old) {
            let (to, add) = (old.array(), g.array());
            if to.shape == add.shape && to.dtype == add.dtype {
                let r = pointwise::run(Out(Some(&to)), "add", &table::Add {}, [&to, &add])?;
                if r.same_elements(&to) {
                    return Ok(old);
                }
                return Ok(Tensor::new(r));
            }
        }
    }
    ops::add(&old, g, Scalar::Int(1))
}
/// Adds a few elements in place, if `old` is owned alone and both lie alike.
fn added(old: &Tensor, g: &Tensor) -> bool {
    let (Some(to), Some(add)) = (old.try_own(), g.try_lend()) else { return false };
    pointwise::within(&to, &table::Add {}, [&to, &add])
}

struct Walk<'a, 'r> {
    graph: Vec<Vertex<'a>>,
    targets: Vec<u32>,
    /// The gradients that have come, for the outputs of each vertex in turn.
    grads: Vec<Option<Tensor>>,
    ready: Ready,
    /// The task's.
    node: Rc<Cell<Option<Arc<Node>>>>,
    keep: bool,
    create: bool,
    /// See `Cx`; a hook on a node sees its gradients after the formula.
    spare: bool,
    accumulate: bool,
    /// Sorted.
    wanted: Vec<Asked>,
    keepers: &'r [(u32, Tensor)],
    results: &'r mut Vec<Option<Tensor>>,
}
/// How many vertices run between two looks for Ctrl-C.
const BETWEEN_INTERRUPTS: u32 = 256;
/// Gradients of so many inputs are found in a list on the stack.
const FEW: usize = 4;

impl Walk<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let mut steps = 0u32;
        while let Some(v) = self.ready.pop() {
            steps += 1;
            if steps.is_multiple_of(BETWEEN_INTERRUPTS)
                && let Some(h) = host()
            {
                h.interrupted()?;
            }
            match self.graph[v as usize].at {
                At::Leaf(h) => self.leaf(v, h.tensor())?,
                At::Node(n) => self.node(v, n)?,
            }
        }
        Ok(())
    }
    /// Adds to what has come to an output of a vertex.
    #[inline]
    fn deliver(&mut self, v: u32, nr: u32, g: Tensor) -> Result<()> {
        let vertex = &self.graph[v as usize];
        debug_assert!((nr as usize) < vertex.at.outputs(), "an edge leads to an output");
        let at = &mut self.grads[vertex.out as usize + nr as usize];
        *at = Some(match at.take() {
            None => g,
            Some(old) => sum(old, &g)?,
        });
        Ok(())
    }
    /// One edge into a vertex has nothing more to deliver.
    #[inline]
    fn arrived(&mut self, v: u32) {
        let vertex = &mut self.graph[v as usize];
        vertex.waits -= 1;
        if vertex.waits == 0 {
            self.ready.push((priority(&vertex.at), v));
        }
    }
    /// What is asked of a vertex.
    fn wanted(&self, v: u32) -> &[Asked] {
        let from = self.wanted.partition_point(|a| a.v < v);
        &self.wanted[from..][..self.wanted[from..].partition_point(|a| a.v == v)]
    }
    fn leaf(&mut self, v: u32, t: &Tensor) -> Result<()> {
        let Vertex { out, needed, wanted, .. } = self.graph[v as usize];
        let Some(mut g) = self.grads[out as usize].take() else { return Ok(()) };
        if !needed && !wanted {
            return Ok(());
        }
        if !wanted && self.accumulate && !t.has_extra() {
            return accumulate(t, g, self.create);
        }
        let hooks = t.look_extra(|e| (e.leaf_hooks.clone(), e.pre_hooks.clone(), e.node_hooks.clone(), e.after_hooks.clone()));
        let (on_grad, pre, post, after) = hooks.unwrap_or_default();
        for (_, h) in on_grad {
            if let Some(new) = h.call(&g)? {
                g = replaced(&g, new, "a hook on a leaf")?;
            }
        }
        if !self.accumulate {
            for k in 0..self.wanted(v).len() {
                let i = self.wanted(v)[k].i;
                self.results[i as usize] = Some(g.clone());
            }
            return Ok(());
        }
        let mut outs = vec![Some(g)];
        for (_, h) in pre {
            if let Some(new) = h.call(&outs)? {
                outs = new;
            }
        }
        let Some(g) = outs.swap_remove(0) else { return Ok(()) };
        let seen = (!post.is_empty()).then(|| g.clone());
        accumulate(t, g, self.create)?;
        if let Some(g) = seen {
            for (_, h) in post {
                h.call(&[], &[Some(g.clone())])?;
            }
        }
        for (_, h) in after {
            h.call(t)?;
        }
        Ok(())
    }
    fn node(&mut self, v: u32, n: &Arc<Node>) -> Result<()> {
        let Vertex { first, out, needed, wanted, .. } = self.graph[v as usize];
        let (first, out) = (first as usize, out as usize);
        let outputs = out..out + n.outputs();
        if !needed && !wanted {
            self.grads[outputs].fill(None);
            return Ok(());
        }
        if n.is_hooked() {
            before(n, &mut self.grads[outputs.clone()], self.create)?;
        }
        if wanted {
            self.give(v, out)?;
        }
        if !needed {
            self.grads[outputs].fill(None);
            return Ok(());
        }
        let inputs = &n.inputs[..];
        let (mut few, mut many): ([Option<Tensor>; FEW], Vec<Option<Tensor>>) = (Default::default(), Vec::new());
        let outs = match few.get_mut(..inputs.len()) {
            Some(outs) => outs,
            None => {
                many.resize(inputs.len(), None);
                &mut many[..]
            }
        };
        let mut needs = 0u64;
        for (i, &to) in self.targets[first..][..inputs.len()].iter().enumerate().take(64) {
            let wants = to != NOWHERE && self.graph[to as usize].asked();
            needs |= (wants as u64) << i;
        }
        let grads = &mut self.grads[outputs];
        if grads.iter().any(Option::is_some) || n.op.takes_undefined() {
            if n.is_freed() {
                return Err(n.freed_error());
            }
            self.node.set(Some(n.clone()));
            let result = n.op.backward(grads, &Cx { node: n, needs, keep: self.keep, spare: self.spare }, outs);
            drop(self.node.take());
            if result.is_err() || mode::anomaly() || n.is_hooked() {
                after(n, result, grads, outs)?;
            }
        }
        if !self.keep {
            n.release();
        }
        // Dropped in place: user code that a drop may run has no way to this walk.
        for g in grads {
            *g = None;
        }
        for (i, (input, g)) in inputs.iter().zip(outs).enumerate() {
            let v = self.targets[first + i];
            if v == NOWHERE {
                continue;
            }
            if let Some(g) = g.take() {
                let g = fit(n, i, g)?;
                self.deliver(v, output_of(&input.edge), g)?;
            }
            self.arrived(v);
        }
        Ok(())
    }
    /// Gives what is asked of a node whose gradients begin at `out`.
    #[cold]
    fn give(&mut self, v: u32, out: usize) -> Result<()> {
        for k in 0..self.wanted(v).len() {
            let Asked { i, nr, .. } = self.wanted(v)[k];
            let Some(g) = self.grads[out + nr as usize].clone() else { continue };
            if self.accumulate {
                for (_, t) in self.keepers.iter().filter(|(at, _)| *at == i) {
                    retain_grad(t, &g, self.create)?;
                }
            } else {
                self.results[i as usize] = Some(g);
            }
        }
        Ok(())
    }
}
/// Hooks on the gradients of a node's outputs: those of tensors, then those that keep it, then those of the node.
#[cold]
fn before(n: &Arc<Node>, grads: &mut [Option<Tensor>], create: bool) -> Result<()> {
    let (on_grad, retain, pre) = n.with_hooks(|h| (h.tensor.clone(), h.retain.clone(), h.pre.clone()));
    for (_, nr, h) in on_grad {
        if let Some(g) = grads[nr as usize].clone()
            && let Some(new) = h.call(&g)?
        {
            grads[nr as usize] = Some(replaced(&g, new, "a hook on a tensor")?);
        }
    }
    for (nr, t) in retain {
        if let (Some(t), Some(g)) = (t.upgrade(), grads[nr as usize].clone()) {
            retain_grad(&t, &g, create)?;
        }
    }
    for (_, h) in pre {
        if let Some(new) = h.call(grads)? {
            if new.len() != grads.len() {
                bail!(Runtime, "a prehook on {} returned {} gradients, but it has {} outputs", n.name(), new.len(), grads.len());
            }
            grads.iter_mut().zip(new).for_each(|(g, new)| *g = new);
        }
    }
    Ok(())
}
/// What is done once a formula has run, where there is more to do than to go on: its error, anomaly mode, hooks of the node.
#[cold]
fn after(n: &Arc<Node>, result: Result<()>, grads: &[Option<Tensor>], outs: &mut [Option<Tensor>]) -> Result<()> {
    result.map_err(|e| explain(n, e))?;
    if mode::anomaly() {
        check_nan(n, outs)?;
    }
    if n.is_hooked() {
        let post = n.with_hooks(|h| h.post.iter().map(|(_, h)| h.clone()).collect::<Vec<_>>());
        let shown: SmallVec<[usize; 4]> = (0..outs.len()).filter(|&i| n.shows(i)).collect();
        for h in post {
            let given: SmallVec<[Option<Tensor>; 4]> = shown.iter().map(|&i| outs[i].clone()).collect();
            if let Some(new) = h.call(&given, grads)? {
                if new.len() != shown.len() {
                    bail!(Runtime, "a hook on {} returned {} gradients, but it has {} inputs", n.name(), new.len(), shown.len());
                }
                shown.iter().zip(new).for_each(|(&i, g)| outs[i] = g);
            }
        }
    }
    Ok(())
}
/// `.grad` of a tensor that is no leaf: set anew or added to, as `retain_grad` promises.
fn retain_grad(t: &Tensor, g: &Tensor, create: bool) -> Result<()> {
    let new = match t.grad() {
        Some(old) => ops::add(old.tensor(), g, Scalar::Int(1))?,
        None if create => ops::clone(g, None)?,
        None => g.clone(),
    };
    drop(t.set_grad(Some(Held::of(&new))));
    Ok(())
}
fn replaced(old: &Tensor, new: Tensor, who: &str) -> Result<Tensor> {
    if new.shape() != old.shape() {
        bail!(Runtime, "{who} has changed the size of value: a gradient of shape {:?} became {:?}", old.shape(), new.shape());
    }
    if new.dtype() != old.dtype() {
        bail!(Runtime, "{who} has changed the type of value (was {} got {})", old.dtype().name(), new.dtype().name());
    }
    Ok(new)
}
/// A gradient as the input looks: summed over what was repeated, in the input's dtype.
#[inline]
fn fit(n: &Arc<Node>, i: usize, g: Tensor) -> Result<Tensor> {
    let want: &Meta = n.meta(i);
    if g.look(|a| a.shape == want.shape && a.dtype == want.dtype) { Ok(g) } else { refit(n, i, g) }
}
fn refit(n: &Arc<Node>, i: usize, g: Tensor) -> Result<Tensor> {
    let want: &Meta = n.meta(i);
    let (shape, dtype) = g.look(|a| (a.shape, a.dtype));
    let g = if shape == want.shape {
        g
    } else {
        let lead = shape.len().checked_sub(want.shape.len());
        let fits = lead.is_some_and(|l| want.shape.iter().enumerate().all(|(d, &w)| w == shape[l + d] || w == 1));
        if !fits {
            bail!(
                Runtime,
                "Function {} returned an invalid gradient at index {i} - got {:?} but expected shape compatible with {:?}",
                n.name(),
                shape,
                want.shape
            );
        }
        ops::sum_to(&g, &want.shape)?
    };
    if dtype == want.dtype { Ok(g) } else { ops::to_dtype(&g, want.dtype) }
}
/// Adds a gradient to a leaf's `.grad`: taken over where nobody else holds it, in place where that is right, else as a new tensor.
pub fn accumulate(t: &Tensor, g: Tensor, create: bool) -> Result<()> {
    let mut g = g;
    loop {
        // Taken out, added, put back: no kernel runs under the lock, and another thread's part is never lost.
        match t.set_grad(None) {
            None => {
                let new = if owned_alone(&g) {
                    if mode::dispatching() { ops::detach(&g)? } else { g }
                } else if create || mode::dispatching() {
                    ops::clone(&g, None)?
                } else {
                    let a = g.array();
                    Tensor::new(pointwise::cast(&a, a.dtype)?)
                };
                match t.set_grad(Some(Held::of(&new))) {
                    None => return Ok(()),
                    Some(other) => {
                        drop(t.set_grad(Some(other)));
                        g = new;
                    }
                }
            }
            Some(old) => {
                let have = old.tensor();
                let in_place = !create && !have.requires_grad() && have.shape() == g.shape() && have.dtype() == g.dtype();
                let new = if in_place {
                    match ops::add_(have, &g, Scalar::Int(1)) {
                        Ok(_) => old,
                        Err(e) => {
                            drop(t.set_grad(Some(old)));
                            return Err(e);
                        }
                    }
                } else {
                    match ops::add(have, &g, Scalar::Int(1)) {
                        Ok(sum) => Held::of(&sum),
                        Err(e) => {
                            drop(t.set_grad(Some(old)));
                            return Err(e);
                        }
                    }
                };
                match t.set_grad(Some(new)) {
                    None => return Ok(()),
                    Some(other) => g = other.tensor().clone(),
                }
            }
        }
    }
}
#[cold]
fn explain(n: &Arc<Node>, e: Box<Error>) -> Box<Error> {
    if mode::anomaly()
        && let (Some(stack), Some(h)) = (n.stack(), host())
        && let Err(e) = h.warn(&format!("Error detected in {}. Traceback of forward call that caused the error:\n{stack}", n.name()))
    {
        return e;
    }
    e
}
#[cold]
fn check_nan(n: &Arc<Node>, outs: &[Option<Tensor>]) -> Result<()> {
    if !mode::anomaly_checks_nan() {
        return Ok(());
    }
    for (i, g) in outs.iter().enumerate() {
        if let Some(g) = g
            && g.array().to_vec().iter().any(|v| v.is_nan())
        {
            return Err(explain(n, err!(Runtime, "Function '{}' returned nan values in its {i}th output.", n.name())));
        }
    }
    Ok(())
}
/// Will the innermost running call run this node?
pub fn will_run(n: &Arc<Node>) -> Option<bool> {
    will_run_at(Arc::as_ptr(n) as usize)
}
/// As `will_run`, for a node or a leaf known by its address.
pub fn will_run_at(at: usize) -> Option<bool> {
    let (edges, known) = with_task(|t| (t.roots.clone(), t.needed.clone().or_else(|| t.graph.clone())))?;
    if let Some(all) = known {
        return Some(all.contains(&at));
    }
    let all: FxHashSet<usize> = number(&edges, &[]).graph.iter().map(|v| v.address).collect();
    let will = all.contains(&at);
    with_task(|t| t.graph = Some(Rc::new(all)));
    Some(will)
}

/// The node that stands for accumulation into a leaf: made when somebody asks, one per leaf for as long as it is held.
pub struct AccumulateGrad {
    pub variable: Held,
}
static ACCUMULATE: crate::tape::Info = crate::tape::Info {
    node: "torch::autograd::AccumulateGrad",
    op: "accumulate_grad",
    schema: "accumulate_grad",
    outputs: &["grad"],
    ..ops::views::PLAIN
};
impl crate::tape::Backward for AccumulateGrad {
    fn info(&self) -> &'static crate::tape::Info {
        &ACCUMULATE
    }
    /// Called by hand only (the walk deals with leaves itself): adds the gradient.
    fn backward(&self, g: &[Option<Tensor>], _: &Cx<'_>, _: &mut [Option<Tensor>]) -> Result<()> {
        match &g[0] {
            Some(g) => accumulate(self.variable.tensor(), g.clone(), mode::grad_enabled()),
            None => Ok(()),
        }
    }
    fn leaf(&self) -> Option<&Held> {
        Some(&self.variable)
    }
}
pub fn accumulate_node(leaf: &Held) -> Arc<Node> {
    let t = leaf.tensor();
    if let Some(n) = t.look_extra(|e| e.accumulate.as_ref().and_then(Weak::upgrade)).flatten() {
        return n;
    }
    let meta = t.look(Meta::of);
    let op = Box::new(AccumulateGrad { variable: leaf.clone() });
    let n = Node::new(u64::MAX, op, SmallVec::new(), &[meta], Default::default(), None);
    t.with_extra(|e| e.accumulate = Some(Arc::downgrade(&n)));
    n
}
/// The edge that a node and an output number stand for: into the leaf itself where the node is its accumulation.
pub fn edge_into(n: &Arc<Node>, nr: u32) -> Edge {
    match n.op.leaf() {
        Some(leaf) => Edge::Leaf(leaf.clone()),
        None => Edge::Node(n.clone(), nr),
    }
}
