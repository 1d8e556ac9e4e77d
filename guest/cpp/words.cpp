// Counts the words of standard input and prints the most frequent.
//
//     words [COUNT] <TEXT

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

int main(int argc, char **argv) {
    const int wanted = argc > 1 ? std::atoi(argv[1]) : 10;
    if (wanted <= 0) {
        std::fprintf(stderr, "words: %s is no number of words to print\n", argv[1]);
        return 2;
    }

    std::unordered_map<std::string, long> counts;
    std::string word;
    for (int c = std::getchar();; c = std::getchar()) {
        if (c != EOF && std::isalpha(c)) {
            word.push_back(static_cast<char>(std::tolower(c)));
        } else if (!word.empty()) {
            ++counts[word];
            word.clear();
        }
        if (c == EOF)
            break;
    }

    std::vector<std::pair<std::string, long>> words(counts.begin(), counts.end());
    std::sort(words.begin(), words.end(), [](const auto &a, const auto &b) {
        return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
    words.resize(std::min(words.size(), static_cast<size_t>(wanted)));
    for (const auto &[text, count] : words)
        std::printf("%8ld  %s\n", count, text.c_str());
}
