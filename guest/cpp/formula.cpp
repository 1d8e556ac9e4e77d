// Evaluates the formulas of standard input, one a line, and prints each value or
// what is wrong. Errors travel as exceptions, through frames with destructors.
//
//     formula <LINES

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef __wasm__
// The tag of C++'s exceptions, which the language's runtime library defines.
asm(".globl __cpp_exception\n.tagtype __cpp_exception i32\n__cpp_exception:\n");
#endif

namespace {

// Counts how many of it live: after each line none may.
struct Alive {
    static inline int count = 0, most = 0;
    Alive() { most = std::max(most, ++count); }
    Alive(const Alive &) = delete;
    ~Alive() { --count; }
};

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
    virtual const char *kind() const { return "error"; }
};
struct SyntaxError : Error {
    size_t at;
    SyntaxError(size_t at, const std::string &what) : Error(what), at(at) {}
    const char *kind() const override { return "syntax"; }
};
struct MathError : virtual Error {
    explicit MathError(const std::string &what) : Error(what) {}
    const char *kind() const override { return "math"; }
};
struct NameError : virtual Error {
    explicit NameError(const std::string &what) : Error(what) {}
    const char *kind() const override { return "name"; }
};
// What is both is caught as either.
struct NamedMathError : MathError, NameError {
    explicit NamedMathError(const std::string &what) : Error(what), MathError(what), NameError(what) {}
    const char *kind() const override { return "math and name"; }
};
// Not an exception of the standard library.
struct Quit { int code; };

struct Node {
    Alive alive;
    virtual ~Node() = default;
    virtual double value() const = 0;
};
using Tree = std::unique_ptr<Node>;

struct Number : Node {
    double number;
    explicit Number(double number) : number(number) {}
    double value() const override { return number; }
};
struct Call : Node {
    std::string name;
    std::vector<Tree> arguments;
    double value() const override;
};

double checked(double value, const char *name) {
    if (std::isnan(value))
        throw NamedMathError(std::string(name) + " of that is no number");
    return value;
}

const std::map<std::string, std::function<double(const std::vector<double> &)>> functions = {
    {"+", [](auto &a) { return a.at(0) + a.at(1); }},
    {"-", [](auto &a) { return a.size() == 1 ? -a.at(0) : a.at(0) - a.at(1); }},
    {"*", [](auto &a) { return a.at(0) * a.at(1); }},
    {"/", [](auto &a) { return a.at(1) == 0 ? throw MathError("division by zero") : a.at(0) / a.at(1); }},
    {"sqrt", [](auto &a) { return checked(std::sqrt(a.at(0)), "sqrt"); }},
    {"max", [](auto &a) {
        double most = a.at(0);
        for (double value : a)
            most = std::max(most, value);
        return most;
    }},
    {"if", [](auto &a) { return a.at(0) != 0 ? a.at(1) : a.at(2); }},
    {"throw", [](auto &a) -> double { throw static_cast<int>(a.at(0)); }},
    {"quit", [](auto &a) -> double { throw Quit{static_cast<int>(a.at(0))}; }},
    // So many frames, each with something to destroy.
    {"deep", [](auto &a) {
        struct Frame {
            static double descend(int left) {
                Alive alive;
                if (left == 0)
                    throw MathError("too deep");
                return descend(left - 1) + alive.count;
            }
        };
        return Frame::descend(static_cast<int>(a.at(0)));
    }},
    // So many exceptions, each caught two frames up and thrown on every third time.
    {"storm", [](auto &a) {
        int caught = 0, passed = 0;
        for (int n = 0; n < a.at(0); n++) {
            try {
                try {
                    Alive alive;
                    if (n % 2)
                        throw MathError("odd");
                    throw n;
                } catch (const Error &) {
                    caught++;
                    if (n % 3 == 0)
                        throw;
                } catch (int even) {
                    caught += even == n;
                    if (n % 3 == 0)
                        throw "even";
                }
            } catch (const MathError &) {
                passed++;
            } catch (const char *text) {
                passed += text[0] == 'e';
            }
        }
        return caught * 1e6 + passed;
    }},
};

double Call::value() const {
    std::vector<double> values;
    for (const Tree &argument : arguments)
        values.push_back(argument->value());
    const auto function = functions.find(name);
    if (function == functions.end())
        throw NameError("no function " + name);
    try {
        return function->second(values);
    } catch (const std::out_of_range &) {
        throw NameError(name + " wants more than " + std::to_string(values.size()) + " values");
    }
}

class Parser {
    const std::string &text;
    size_t at = 0;

    char peek() {
        while (at < text.size() && text[at] == ' ')
            at++;
        return at < text.size() ? text[at] : '\0';
    }
    bool accept(char wanted) { return peek() == wanted ? at++, true : false; }
    void expect(char wanted) {
        if (!accept(wanted))
            throw SyntaxError(at, std::string("expected ") + wanted);
    }
    static Tree call(std::string name, Tree left, Tree right) {
        auto made = std::make_unique<Call>();
        made->name = std::move(name);
        made->arguments.push_back(std::move(left));
        if (right)
            made->arguments.push_back(std::move(right));
        return made;
    }
    Tree sum() {
        Tree left = product();
        for (char sign = peek(); sign == '+' || sign == '-'; sign = peek()) {
            at++;
            left = call(std::string(1, sign), std::move(left), product());
        }
        return left;
    }
    Tree product() {
        Tree left = factor();
        for (char sign = peek(); sign == '*' || sign == '/'; sign = peek()) {
            at++;
            left = call(std::string(1, sign), std::move(left), factor());
        }
        return left;
    }
    Tree factor() {
        if (accept('-'))
            return call("-", factor(), nullptr);
        if (accept('(')) {
            Tree inner = sum();
            expect(')');
            return inner;
        }
        const size_t start = at;
        while (std::isalpha(static_cast<unsigned char>(peek())))
            at++;
        if (at > start) {
            auto made = std::make_unique<Call>();
            made->name = text.substr(start, at - start);
            expect('(');
            do
                made->arguments.push_back(sum());
            while (accept(','));
            expect(')');
            return made;
        }
        while (std::isdigit(static_cast<unsigned char>(peek())) || peek() == '.')
            at++;
        if (at == start)
            throw SyntaxError(at, "expected a value");
        return std::make_unique<Number>(std::atof(text.substr(start, at - start).c_str()));
    }

public:
    explicit Parser(const std::string &text) : text(text) {}
    Tree formula() {
        Tree whole = sum();
        if (peek())
            throw SyntaxError(at, "expected the end");
        return whole;
    }
};

bool read_line(std::string &line) {
    line.clear();
    int c = std::getchar();
    const bool some = c != EOF;
    for (; c != EOF && c != '\n'; c = std::getchar())
        line.push_back(static_cast<char>(c));
    return some;
}

} // namespace

int main() {
    std::string line;
    int lines = 0, wrong = 0;
    try {
        while (read_line(line)) {
            lines++;
            try {
                std::printf("%d: %.17g\n", lines, Parser(line).formula()->value());
            } catch (const SyntaxError &error) {
                std::printf("%d: %s at %zu: %s\n", lines, error.kind(), error.at, error.what());
                wrong++;
            } catch (const NameError &error) {
                std::printf("%d: %s, a name: %s\n", lines, error.kind(), error.what());
                wrong++;
            } catch (const std::exception &error) {
                const auto *own = dynamic_cast<const Error *>(&error);
                std::printf("%d: %s: %s\n", lines, own ? own->kind() : "foreign", error.what());
                wrong++;
            } catch (const Quit &) {
                throw;
            } catch (...) {
                std::printf("%d: something else\n", lines);
                wrong++;
            }
            if (Alive::count) {
                std::printf("%d: %d are left\n", lines, Alive::count);
                return 3;
            }
        }
    } catch (const Quit &quit) {
        std::printf("quit with %d; %d left, %d at most\n", quit.code, Alive::count, Alive::most);
        return quit.code;
    }
    std::printf("%d lines, %d wrong, at most %d alive\n", lines, wrong, Alive::most);
    return wrong ? 1 : 0;
}
